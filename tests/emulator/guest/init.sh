#!/bin/busybox sh
# The guest's first process: loads modules, runs the tests of plan.sh, powers off.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
stty -echo
for module in /modules/*.ko; do insmod "$module" || echo "rig: trouble insmod $module"; done
ulimit -c 0
# The address range of the peer device's memory.
echo "rig: bar $(sed -n 3p /sys/bus/pci/devices/0000:00:05.0/resource)"
. /plan.sh
echo "rig: done"
poweroff -f
