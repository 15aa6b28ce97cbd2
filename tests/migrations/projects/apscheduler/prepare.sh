# jq, with which the page reads what `scheduler status` prints.
set -e
command -v jq > /dev/null || {
    apt-get update -q && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends jq
} > /dev/null
