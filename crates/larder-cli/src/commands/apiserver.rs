//! `larder apiserver`: the embedded API server over TLS.

use std::process::ExitCode;

use anyhow::Context as _;
use futures::future::OptionFuture;
use larder_apiserver::{ApiServer, AuditLog, Options, Protocol};
use larder_connections::raise_descriptor_limit;
use larder_manifests::Feed;
use tokio_util::sync::CancellationToken;

use crate::{
    args::ApiserverArgs,
    kubeconfig_file::KubeconfigFile,
    logging,
    outcome::Failure,
    output,
    runtime::{block_on_all_cores, listen, stop_signal},
};

pub(super) fn run(args: &ApiserverArgs) -> Result<ExitCode, Failure> {
    let log = logging::start(args.log_format);
    raise_descriptor_limit();
    block_on_all_cores(log.limit.reporting(serve(args)))
}

/// Serves until a signal arrives.
async fn serve(args: &ApiserverArgs) -> Result<ExitCode, Failure> {
    // Before anything else, so that no signal is missed.
    let shutdown = CancellationToken::new();
    let stopped = stop_signal()?;

    let mut options = Options::default();
    if let Some(path) = &args.audit_log {
        let log = AuditLog::to_file(path);
        let what = || format!("cannot open the audit log {}", path.display());
        options = options.audit(log.with_context(what)?);
    }
    let server = ApiServer::try_new(options).context("cannot create the certificates")?;
    let feed = match &args.manifests {
        None => None,
        Some(dir) => {
            let feed = Feed::open(dir, server.clone(), None, None).await;
            Some(feed.map_err(Failure::of_input)?)
        }
    };
    let (listener, address) = listen(args.listen).await?;

    let serving = server.serve(listener, Protocol::Tls, shutdown.clone());
    let ending = async {
        // A feed never ends.
        tokio::select! {
            () = stopped => {}
            Some(()) = OptionFuture::from(feed.map(Feed::run)) => {}
        }
        shutdown.cancel();
        Ok(())
    };
    // The listener accepts connections already.
    let kubeconfig = args
        .kubeconfig_out
        .as_ref()
        .map(|path| KubeconfigFile::of_admin(path, &server, address))
        .transpose()?;
    larder_console::report(format_args!("listening on https://{address}"));
    if kubeconfig.is_none() {
        output::note("no client can log in: write a kubeconfig with --kubeconfig-out FILE");
    }

    tokio::try_join!(serving, ending).context("the server ended")?;
    Ok(ExitCode::SUCCESS)
}
