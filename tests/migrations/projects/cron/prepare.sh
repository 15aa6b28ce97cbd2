# A machine with Debian's cron at work, and the shop in /srv. All of it is gone with the namespaces.
set -e
command -v cron > /dev/null || {
    apt-get update -q && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends cron
} > /dev/null
mount -t tmpfs -o mode=755 none /run  # where the cron of this machine has its lock
mount -t tmpfs -o mode=1730 none /var/spool/cron/crontabs
mount -t tmpfs none /etc/cron.d
mount --bind /dev/null /etc/crontab
mount -t tmpfs none /srv
mkdir /srv/shop
mount --bind . /srv/shop
cron
sleep 2  # what is installed in the second in which it starts, it would not see
