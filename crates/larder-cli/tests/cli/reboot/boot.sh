# Becomes systemd, as process 1 of a machine of its own: a view of this one with other /etc, /var, /run, /dev and network.
# Needs: $here, a directory with etc and var, which outlive a boot; $larder, $packaging.
set -e
mount --make-rprivate /
root=$here/root
mkdir -p "$root"
mount -t tmpfs -o mode=755 none "$root"
for name in bin sbin lib lib64; do
    [ ! -L "/$name" ] || cp -a "/$name" "$root/$name"
done
# As on any machine: only root writes there.
umask 022
mkdir -p "$root"/{usr,etc,var,run,tmp,dev,proc,sys,root} "$root/usr.upper" "$root/usr.work"
overlay() {
    mount -t overlay none -o "lowerdir=$1,upperdir=$2,workdir=$3" "$root$1"
}
overlay /usr "$root/usr.upper" "$root/usr.work"
for name in etc var; do
    mkdir -p "$here/$name.upper" "$here/$name.work"
    overlay "/$name" "$here/$name.upper" "$here/$name.work"
done
# What the package installs.
install -D -m 755 "$larder" "$root/usr/bin/larder"
install -m 644 -t "$root/usr/lib/systemd/system" "$packaging/larder.service" "$packaging/larder-wait@.service"
mount -t tmpfs none "$root/run"
mount -t tmpfs none "$root/tmp"
mount -t tmpfs -o mode=755 none "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
# No console: systemd takes what it uses as such away from others.
mount -t devpts -o newinstance,ptmxmode=0666 none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t proc none "$root/proc"
# Settings of the kernel are those of the machine around it.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro none "$root/sys"
if grep -q name=systemd /proc/self/cgroup; then
    mount -t tmpfs none "$root/sys/fs/cgroup"
    mkdir "$root/sys/fs/cgroup/systemd"
    mount -t cgroup -o none,name=systemd none "$root/sys/fs/cgroup/systemd"
else
    mount -t cgroup2 none "$root/sys/fs/cgroup"
fi
ip link set lo up
cd "$root"
mkdir .around
pivot_root . .around
umount -l /.around
# As process 1 of a machine does: services see mounts made later, such as their credentials.
mount --make-rshared /
exec env -i container=larder PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=multi-user.target --show-status=no --log-target=journal
