//! Addresses of this machine.

use std::{
    io::{self, Write as _},
    net::UdpSocket,
};

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
