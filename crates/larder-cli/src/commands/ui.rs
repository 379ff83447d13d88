//! `larder ui`: a live page with the status of the agent of this machine.
//!
//! ```text
//!  agent's socket ─► follow: status after each change ─► view: a card for each pod ─► server: events ─► browser
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | `follow` | keeps the view up to date, also across restarts of the agent |
//! | `view` | the status as cards, and the feed of changes |
//! | `server` | HTTP on loopback: access to the page, the page itself, its events |
//!
//! Invariants:
//! 1. Nothing is written: neither to the agent nor to a disk. The status has no value of an object.
//! 2. Only the browser that first opens the printed address sees anything.

mod follow;
mod server;
mod view;

use std::{process::ExitCode, sync::Arc};

use anyhow::anyhow;
use larder_agent::local_api;
use larder_connections::Acceptor;
use larder_console::Format;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::view::View;
use crate::{
    agent::client_config,
    args::UiArgs,
    outcome::Failure,
    output,
    runtime::{block_on, listen, stop_signal},
};

pub(super) fn run(args: &UiArgs) -> Result<ExitCode, Failure> {
    larder_console::hold(Format::Text);
    let root_dir = client_config(&args.place)?.root_dir;
    block_on(async {
        let (listener, address) = listen(args.listen).await?;
        let stop = stop_signal()?;
        let (sender, views) = watch::channel(Arc::new(View::default()));
        let shutdown = CancellationToken::new();
        let access = server::Access::new(address).map_err(|_| anyhow!("no random numbers"))?;
        let url = access.url();
        let router = server::router(access, views, shutdown.clone());
        let acceptor = Acceptor::new(listener, local_api::socket_limits());
        let serve = acceptor.serve(router, shutdown.clone());
        let follow = follow::follow(root_dir, sender);
        output::results(|out| writeln!(out, "{url}"))?;
        // The first two end only with the process, the last by a signal.
        tokio::select! {
            () = serve => {}
            () = follow => {}
            () = stop => {}
        }
        shutdown.cancel();
        Ok(ExitCode::SUCCESS)
    })
}
