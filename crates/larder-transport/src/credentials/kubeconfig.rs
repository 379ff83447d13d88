//! Kubeconfig files: the fields that a client needs, and errors that quote none of them.
//!
//! A parser's message shows the text around a mistake, which in this file is likely to be a token or a key. So an error
//! has a line and a kind only, and the file is not read by `kube`, whose errors quote.

use std::{collections::BTreeMap, path::Path};

use larder_objects::yaml::{ErrorKind, Limits, YamlDocument};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use super::secret::SecretText;
use crate::setup_error::KubeconfigError;

/// Most contexts that an error names.
const MAX_NAMED: usize = 20;

/// A kubeconfig.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Kubeconfig {
    clusters: Option<Vec<Named<Cluster>>>,
    users: Option<Vec<Named<AuthInfo>>>,
    contexts: Option<Vec<Named<Context>>>,
    current_context: Option<String>,
}

/// An entry of a list: `name`, and the value under a key that depends on the list.
#[derive(Deserialize)]
struct Named<T> {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    #[serde(
        default = "Option::default",
        alias = "cluster",
        alias = "user",
        alias = "context"
    )]
    value: Option<T>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    #[serde(deserialize_with = "or_default")]
    cluster: String,
    user: Option<String>,
    namespace: Option<String>,
}

/// A cluster; fields as in the file.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Cluster {
    pub(super) server: Option<SecretText>,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) certificate_authority: Option<String>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<SecretText>,
    pub(super) tls_server_name: Option<String>,
    pub(super) disable_compression: Option<bool>,
    pub(super) extensions: Option<Vec<Extension>>,
}

/// An extension of a cluster: settings for a plugin.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Extension {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    pub(super) extension: serde_json::Value,
}

/// A user; fields as in the file.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct AuthInfo {
    pub(super) username: Option<SecretText>,
    pub(super) password: Option<SecretText>,
    pub(super) token: Option<SecretText>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<String>,
    pub(super) client_certificate: Option<String>,
    pub(super) client_certificate_data: Option<SecretText>,
    pub(super) client_key: Option<String>,
    pub(super) client_key_data: Option<SecretText>,
    #[serde(rename = "as")]
    pub(super) impersonate: Option<SecretText>,
    #[serde(rename = "as-uid")]
    pub(super) impersonate_uid: Option<SecretText>,
    #[serde(rename = "as-groups")]
    pub(super) impersonate_groups: Option<Vec<SecretText>>,
    #[serde(rename = "as-user-extra")]
    pub(super) impersonate_extra: Option<BTreeMap<String, Vec<SecretText>>>,
    pub(super) auth_provider: Option<AuthProvider>,
    pub(super) exec: Option<Exec>,
}

/// The provider of older configurations; its settings depend on its name.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct AuthProvider {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    pub(super) config: Option<BTreeMap<String, SecretText>>,
}

/// An exec plugin.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Exec {
    pub(super) api_version: Option<String>,
    pub(super) command: Option<String>,
    pub(super) args: Option<Vec<SecretText>>,
    pub(super) env: Option<Vec<Variable>>,
    pub(super) interactive_mode: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) provide_cluster_info: bool,
}

/// A variable of a plugin's environment.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) value: SecretText,
}

/// As client-go reads any field: `null` is the same as no field, which has the type's empty value.
fn or_default<'de, D, T>(field: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(field).map(Option::unwrap_or_default)
}

/// The parts of a kubeconfig that the chosen context references.
pub(super) struct Selected {
    pub(super) cluster: Cluster,
    pub(super) user: AuthInfo,
    pub(super) namespace: Option<String>,
}

impl Kubeconfig {
    /// Reads a file; relative paths in it become absolute.
    pub(super) fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let text = super::file::read_text(path).map_err(KubeconfigError::Read)?;
        let mut kubeconfig = Self::parse(&text)?;
        if let Some(directory) = path.parent() {
            kubeconfig.resolve(directory);
        }
        Ok(kubeconfig)
    }

    /// Of several documents, the first that sets a value or an entry wins.
    fn parse(text: &str) -> Result<Self, KubeconfigError> {
        let documents: Vec<Option<Self>> = yaml(text)?;
        let mut whole = Self::default();
        for next in documents.into_iter().flatten() {
            extend(&mut whole.clusters, next.clusters);
            extend(&mut whole.users, next.users);
            extend(&mut whole.contexts, next.contexts);
            whole.current_context = whole.current_context.or(next.current_context);
        }
        Ok(whole)
    }

    fn resolve(&mut self, directory: &Path) {
        let absolute = |path: &mut Option<String>| {
            if let Some(path) = path
                && !path.is_empty()
            {
                *path = directory.join(&*path).to_string_lossy().into_owned();
            }
        };
        for cluster in values(&mut self.clusters) {
            absolute(&mut cluster.certificate_authority);
        }
        for user in values(&mut self.users) {
            absolute(&mut user.client_certificate);
            absolute(&mut user.client_key);
            absolute(&mut user.token_file);
            // As in client-go: a bare name is searched for in PATH.
            if let Some(exec) = &mut user.exec
                && exec.command.as_ref().is_some_and(|name| name.contains('/'))
            {
                absolute(&mut exec.command);
            }
        }
    }

    /// The names of the contexts.
    pub(super) fn contexts(&self) -> impl Iterator<Item = &String> {
        self.contexts.iter().flatten().map(|context| &context.name)
    }

    /// The cluster and user of a context, or of the current one. A missing user is an anonymous one, as in client-go.
    pub(super) fn select(self, context: Option<&str>) -> Result<Selected, KubeconfigError> {
        if let Some(name) = context.filter(|name| !self.contexts().any(|known| known == name)) {
            return Err(KubeconfigError::NoContext {
                name: name.to_owned(),
                known: self.contexts().take(MAX_NAMED).cloned().collect(),
            });
        }
        let name = context
            .or(self.current_context.as_deref())
            .filter(|name| !name.is_empty())
            .ok_or(KubeconfigError::Context("no current context"))?;
        let context =
            find(self.contexts, name).ok_or(KubeconfigError::Context("the context is missing"))?;
        Ok(Selected {
            cluster: find(self.clusters, &context.cluster).ok_or(KubeconfigError::Context(
                "the cluster of the context is missing",
            ))?,
            user: context
                .user
                .and_then(|user| find(self.users, &user))
                .unwrap_or_default(),
            namespace: context.namespace.filter(|namespace| !namespace.is_empty()),
        })
    }
}

/// Reads the documents of a YAML or JSON text within limits.
pub(super) fn yaml<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, KubeconfigError> {
    let limits = Limits {
        documents: 16,
        copied_bytes: 0,
        last_key_wins: true,
        as_kubernetes: false,
    };
    YamlDocument::parse_all(text, limits)
        .and_then(|documents| documents.iter().map(YamlDocument::decode).collect())
        .map_err(|error| KubeconfigError::Line {
            line: error.line,
            problem: match error.kind {
                ErrorKind::Limit => "too complex, or YAML anchors are used",
                ErrorKind::Type => "not what a kubeconfig has here",
                ErrorKind::Syntax | ErrorKind::DuplicateKey => "malformed YAML",
            },
        })
}

fn extend<T>(list: &mut Option<Vec<T>>, next: Option<Vec<T>>) {
    list.get_or_insert_default()
        .extend(next.into_iter().flatten());
}

fn values<T>(list: &mut Option<Vec<Named<T>>>) -> impl Iterator<Item = &mut T> {
    list.iter_mut()
        .flatten()
        .filter_map(|named| named.value.as_mut())
}

fn find<T>(list: Option<Vec<Named<T>>>, name: &str) -> Option<T> {
    let mut entries = list.into_iter().flatten();
    entries.find(|entry| entry.name == name)?.value
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4n4ry";

    #[test]
    fn the_first_document_with_an_entry_wins() {
        let text = "
            current-context: a
            contexts: [{name: a, context: {cluster: c, user: u, namespace: ns}}]
            users:
            ---
            clusters: [{name: c, cluster: {server: first}}, {name: c, cluster: {server: second}}]
            users: [{name: u, user: {token: t, unknown: {field: 1}}}]
            preferences: {}
        ";
        let text = text.replace("            ", "");
        let selected = Kubeconfig::parse(&text).unwrap().select(None).unwrap();
        assert_eq!(&*selected.cluster.server.unwrap(), "first");
        assert_eq!(&*selected.user.token.unwrap(), "t");
        assert_eq!(selected.namespace.as_deref(), Some("ns"));
    }

    #[test]
    fn a_field_that_is_missing_or_null_is_empty() {
        let text = "
            current-context: x
            contexts: [{name: x, context: {cluster: c, user: u}}, {name: }]
            clusters: [{name: c, cluster: {server: s, extensions: [{}]}}]
            users: [{name: u, user: {exec: {command: p, provideClusterInfo: , env: [{name: A}, {name: B, value: }, {}]}}}]
        ";
        let selected = Kubeconfig::parse(&text.replace("            ", ""));
        let user = selected.unwrap().select(None).unwrap().user;
        let variables = user.exec.unwrap().env.unwrap();
        let shown = variables.iter().map(|one| (&*one.name, &*one.value));
        assert_eq!(shown.collect::<Vec<_>>(), [("A", ""), ("B", ""), ("", "")]);
    }

    #[test]
    fn an_error_has_line_and_kind_only() {
        let deep = format!("a: {}{CANARY}{}", "[".repeat(100), "]".repeat(100));
        for (text, expected) in [
            (
                format!("a: 1\nb: \"{CANARY}\nc: ["),
                "line 3: malformed YAML",
            ),
            (
                format!("users:\n- name: {CANARY}\n  user: {CANARY}"),
                "line 3: not what a kubeconfig has here",
            ),
            (
                format!("users:\n- name: u\n  user: {{token: [{CANARY}]}}"),
                "line 3: not what a kubeconfig has here",
            ),
            (
                format!("a: &{CANARY} 1\nb: *{CANARY}"),
                "line 1: too complex, or YAML anchors are used",
            ),
            (deep, "line 1: too complex, or YAML anchors are used"),
        ] {
            let error = Kubeconfig::parse(&text).err().unwrap();
            assert_eq!(error.to_string(), expected, "{text}");
            assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
        }
    }

    #[test]
    fn a_context_must_lead_to_a_cluster() {
        let select = |text: &str| {
            let selected = Kubeconfig::parse(text).unwrap().select(None);
            selected.err().unwrap().to_string()
        };
        assert_eq!(select(""), "no current context");
        assert_eq!(select("current-context: a"), "the context is missing");
        assert_eq!(
            select("{current-context: a, contexts: [{name: a, context: {cluster: b}}]}"),
            "the cluster of the context is missing"
        );
        let file = Kubeconfig::parse("contexts: [{name: a, context: {cluster: c}}, {name: b}]");
        assert_eq!(
            file.unwrap().select(Some("c")).err().unwrap().to_string(),
            r#"no context "c"; its contexts are ["a", "b"]"#
        );
    }
}
