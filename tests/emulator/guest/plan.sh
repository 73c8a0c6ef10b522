# Runs the tests on their disks (see machine.py), in one boot. FAULTY, BAD_READS, BAD_WRITES and ONLY come from the
# kernel's command line. The driver vfio takes its disks from the kernel and returns them.
LARGE=0000:00:03.0 # LBA 512
SMALL=0000:00:04.0 # LBA 4096, transfers of 16 KiB
SLOW=0000:00:07.0
PAIR=0000:00:08.0 # two namespaces: LBA 512 and 4096

# check NAME TEST DRIVER DISK...
check() {
    name=$1
    shift
    case "$name" in *"$ONLY"*) ;; *) return ;; esac
    echo "rig: begin $name"
    dmesg -c >/dev/null
    timeout -s KILL 300 /rig "$@" 2>&1
    status=$?
    [ $status = 0 ] || dmesg | tail -n 20
    echo "rig: end $status $name"
}

# The tests of every driver.
common() {
    check "$1: random extents on two controllers, LBA 512 and 4096, with bad blocks" extents "$1" $FAULTY $SMALL
    check "$1: the kernel reads the same from both" audit "$1" $FAULTY $SMALL
    check "$1: queue full" queue-full "$1" $LARGE
    check "$1: splitting at mdts" splitting "$1" $SMALL
    check "$1: capacity exhausted, LBA 512" capacity "$1" $PAIR/1
    check "$1: capacity exhausted, LBA 4096, a controller's second namespace" capacity "$1" $PAIR/2
    check "$1: several threads on two controllers striped" threads "$1" $LARGE $SMALL
    check "$1: LBA trace and bytes written" order "$1" $LARGE
    check "$1: errors of bad blocks in words" bad-blocks "$1" $FAULTY
    check "$1: killed, and claimed again" killed "$1" $LARGE $SMALL
    check "$1: controller reset" extents-with-resets "$1" $SMALL
    check "$1: commands that time out" timeout "$1" $SLOW
}

# until_true TROUBLE CONDITION: waits for what the kernel does in the background.
until_true() {
    tries=0
    until eval "$2"; do
        tries=$((tries + 1))
        [ $tries = 1200 ] && echo "rig: trouble after a minute: $1" && return
        sleep 0.05
    done
}

live() { grep -qx live /sys/bus/pci/devices/"$1"/nvme/nvme*/state; }

# bind_to DRIVER DISK
bind_to() {
    echo "$1" >/sys/bus/pci/devices/"$2"/driver_override
    echo "$2" >/sys/bus/pci/devices/"$2"/driver/unbind
    echo "$2" >/sys/bus/pci/drivers/"$1"/bind
}

until_true "not all disks are there" '[ "$(ls /sys/block | grep -c nvme)" = 6 ]'
for queue in /sys/block/nvme*/queue; do echo 2 >"$queue/nomerges"; done # no merging: an injected error must fail one command only
for queue in /sys/bus/pci/devices/$SLOW/nvme/nvme*/nvme*n1/queue; do echo 1000 >"$queue/io_timeout"; done
for path in pread-cached pread uring nvme; do check "$path: counts" counts $path $LARGE; done
for driver in uring threads nvme; do common $driver; done
check "vfio: counts" counts vfio $LARGE
check "vfio, peer memory: counts" counts-in-bar vfio $LARGE
check "vfio: a disk in use is refused" in-use vfio $LARGE
# The kernel's nvme driver finishes its work late: the disk is taken again while its controller starts.
echo 19 >/sys/bus/workqueue/devices/nvme-wq/nice
echo 1 >/sys/bus/workqueue/devices/nvme-wq/cpumask
taskset 1 sh -c 'while :; do :; done' &
busy=$!
check "vfio: returned, and taken again at once" handover vfio $SMALL
kill $busy
echo 0 >/sys/bus/workqueue/devices/nvme-wq/nice
echo 3 >/sys/bus/workqueue/devices/nvme-wq/cpumask
until_true "$SMALL has not started" "live $SMALL"
bind_to vfio-pci $SMALL
check "vfio: a disk that stays with vfio-pci, while something else resets it" opened-in-reset vfio $SMALL
bind_to nvme $SMALL
common vfio
check "vfio, peer memory: random extents" extents-in-bar vfio $LARGE $SMALL
check "vfio, peer memory: disk to device and back" peer vfio $PAIR/1
