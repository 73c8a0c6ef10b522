#!/bin/busybox sh
# The guest's first process: modules, then the tests of plan.sh, then off.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
stty -echo
for module in /modules/*.ko; do insmod "$module" || echo "rig: trouble insmod $module"; done
ulimit -c 0
# Of the device whose memory the disks will write to: where it lies.
echo "rig: bar $(sed -n 3p /sys/bus/pci/devices/0000:00:05.0/resource)"
. /plan.sh
echo "rig: done"
poweroff -f
