//! Errors of setting up a transport, and of renewing its credentials.
//!
//! Invariant: no error, its causes and their `Debug` included, quotes a credential, a file or the output of a plugin.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Why a transport cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The kubeconfig file is unreadable, or names no usable cluster or context.
    #[error("failed to load kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: KubeconfigError,
    },
    /// This process does not run in a pod: a variable that every container has is not set.
    #[error("not running in a pod: {variable} is not set")]
    NotInCluster {
        /// The variable.
        variable: &'static str,
    },
    /// The API server's URL has no host, or neither `http` nor `https` as scheme.
    #[error("unsupported server URL {url}: expected http[s]://HOST[:PORT]")]
    Url {
        /// Scheme, host and port, as far as it has them.
        url: String,
    },
    /// The port in the API server's URL, `server` of the kubeconfig's cluster, is none.
    #[error("invalid port in server {url}: expected 1 to 65535")]
    Port {
        /// Scheme, host and port.
        url: String,
    },
    /// The kubeconfig or the environment asks for an unsupported proxy.
    #[error("unsupported proxy {url}: expected http://[USER:PASSWORD@]HOST:PORT")]
    Proxy {
        /// The proxy, without user and password.
        url: String,
    },
    /// A setting of [`Config`](crate::Config) is out of bounds.
    #[error("invalid {setting}: expected {expected}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// The bounds.
        expected: String,
    },
    /// A credential file cannot be read.
    #[error("failed to read the {part} from {}", path.display())]
    Unreadable {
        /// The text that was read.
        part: &'static str,
        /// The file.
        path: PathBuf,
        /// Why; never the content.
        source: io::Error,
    },
    /// A part of the credentials is unusable.
    #[error("invalid {part}: {problem}")]
    Invalid {
        /// The part.
        part: &'static str,
        /// The problem; never the content.
        problem: &'static str,
    },
    /// `tls-server-name` or the host is not a name that a certificate can have.
    #[error("tls-server-name or the server's host is not a name that a certificate can have")]
    ServerName,
    /// No authority is configured, and those of the system are unusable.
    #[error("failed to load the system's certificate authorities")]
    SystemAuthorities,
    /// The exec plugin gave no credentials.
    #[error("exec plugin {name} gave no credentials")]
    Plugin {
        /// Name of its command, without directory and arguments.
        name: String,
        /// Why.
        source: PluginError,
    },
    /// The kubeconfig asks for an auth provider. Kubernetes has replaced these by exec plugins.
    #[error("auth provider {provider} is not supported: configure an exec plugin")]
    Provider {
        /// The provider.
        provider: &'static str,
    },
    /// Reading the credentials panicked, or the runtime is shutting down.
    #[error("reading the credentials was interrupted")]
    Interrupted,
}

impl SetupError {
    pub(crate) fn invalid(part: &'static str, problem: &'static str) -> Self {
        Self::Invalid { part, problem }
    }

    /// A credential file does not exist.
    pub(crate) fn is_missing_file(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Why a kubeconfig cannot be used. Nothing from the file is quoted but the names of contexts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigError {
    /// The file cannot be read.
    #[error("failed to read the file")]
    Read(#[source] io::Error),
    /// It is not YAML, too complex, or has a value of another type than a kubeconfig's.
    #[error("line {line}: {problem}")]
    Line {
        /// Line of the mistake, from 1.
        line: usize,
        /// The problem.
        problem: &'static str,
    },
    /// The file lacks the context that was asked for.
    #[error("no context {name:?}; its contexts are {known:?}")]
    NoContext {
        /// The context.
        name: String,
        /// The first of those that it has.
        known: Vec<String>,
    },
    /// No context is chosen, or the current context or its cluster is missing.
    #[error("{0}")]
    Context(&'static str),
}

/// Why an exec plugin gave no credentials. Neither its arguments and environment nor its output are quoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The configuration names no command.
    #[error("no command is configured")]
    NoCommand,
    /// The plugin needs a terminal: `interactiveMode: Always`.
    #[error("it needs a terminal, which larder does not give to a plugin")]
    Interactive,
    /// It cannot be started.
    #[error("failed to start it")]
    Start(#[source] io::Error),
    /// Its output cannot be read.
    #[error("failed to read its output")]
    Read(#[source] io::Error),
    /// It failed. Run it by hand to see its output, which is not logged because it may have credentials in it.
    #[error("it failed ({0}); its output is not shown")]
    Failed(ExitStatus),
    /// It did not answer in time.
    #[error("no answer after {0:?}")]
    Timeout(Duration),
    /// It printed more than an answer may have.
    #[error("its output is longer than {limit_bytes} bytes")]
    TooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// Its output is no ExecCredential.
    #[error("its output is not an ExecCredential")]
    Malformed,
    /// It answered with another `apiVersion` than the configured one.
    #[error("it answered with another apiVersion than the configured one")]
    Version,
    /// Its answer has neither a token nor a client certificate with its key, or they are unusable.
    #[error("its answer has no usable token and no client certificate with key")]
    NoCredentials,
}
