//! Passes the stage's mount namespace to the supervisor, through a socket in the private tmpfs.
//!
//! The supervisor cannot always open `/proc/PID/ns/mnt` of a command that runs as another user; the stage can open its
//! own.

use std::{
    fs,
    future::pending,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::Path,
};

use futures::future::{Fuse, FutureExt as _, LocalBoxFuture};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
};

/// In the private tmpfs.
const SOCKET: &str = "stage.sock";

/// The stage's end: connects to the supervisor, while the private tmpfs and the host's `/proc` can be seen. The result
/// passes the mount namespace of this process.
pub(super) fn connect(staging: &Path) -> io::Result<impl FnOnce() -> io::Result<()>> {
    let mounts = fs::File::open("/proc/self/ns/mnt")?;
    let supervisor = StdUnixStream::connect(staging.join(SOCKET))?;
    Ok(move || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let mounts = [mounts.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&mounts));
        let (byte, flags) = (IoSlice::new(b"m"), SendFlags::empty());
        sendmsg(&supervisor, &[byte], &mut ancillary, flags)?;
        Ok(())
    })
}

/// The supervisor's end: the mount namespace of the stage, once it reports; never if it fails.
pub(super) type StageReport = Fuse<LocalBoxFuture<'static, OwnedFd>>;

/// Listens for the stage of the next start.
pub(super) fn listen(staging: &Path) -> io::Result<StageReport> {
    let path = staging.join(SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    let report = async move {
        if let Ok((stage, _)) = listener.accept().await {
            let received = stage.async_io(Interest::READABLE, || receive(&stage));
            if let Ok(Some(mounts)) = received.await {
                return mounts;
            }
        }
        // A stage that failed has closed its end.
        pending().await
    };
    Ok(report.boxed_local().fuse())
}

fn receive(stage: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let (mut byte, flags) = ([0], RecvFlags::CMSG_CLOEXEC);
    let mut bytes = [IoSliceMut::new(&mut byte)];
    recvmsg(stage, &mut bytes, &mut ancillary, flags)?;
    let mut messages = ancillary.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}
