//! Addresses and ports of this machine.

use std::{
    io::{self, Write as _},
    mem,
    net::{Ipv4Addr, UdpSocket},
};

use tokio::net::TcpSocket;

/// An address of this machine that a pod could have; `None`, with a note, if it has only loopback ones. No packet is
/// sent.
///
/// # Panics
///
/// No UDP socket can be bound.
pub fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a UDP socket can be bound");
    let connected = socket.connect("198.51.100.1:9");
    let address = connected.and_then(|()| socket.local_addr()).ok();
    let address = address.filter(|address| !address.ip().is_loopback());
    if address.is_none() {
        // Straight to the stream, which no test runner captures.
        let note = b"not tested: this machine has no address but loopback ones\n";
        let _ = io::stderr().write_all(note);
    }
    Some(address?.ip().to_string())
}

/// A TCP port that this machine gives to nothing else while this process runs. Connections to it are refused until a
/// server binds it: with `SO_REUSEADDR`, as servers do.
///
/// # Errors
///
/// No socket can be bound.
pub fn reserved_port() -> io::Result<u16> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let port = socket.local_addr()?.port();
    // Bound until the process ends.
    mem::forget(socket);
    Ok(port)
}
