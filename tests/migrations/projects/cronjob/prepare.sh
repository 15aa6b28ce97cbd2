# A cluster's stand-in, the kubectl that talks to it, and the shop in /srv, as it is in its image.
# All of it is gone with the namespaces.
set -e
command -v jq > /dev/null || {
    apt-get update -q && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends jq
} > /dev/null
mount -t tmpfs none /srv
mkdir -p /srv/shop ~/.kube
mount --bind . /srv/shop
mount -t tmpfs none ~/.kube
nohup ../environment/bin/python cluster.py > cluster.log 2>&1 &
until [ -e ~/.kube/config ]; do sleep 0.1; done
