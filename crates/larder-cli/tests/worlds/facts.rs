//! What only a running pod, its node or its cluster has.

use super::{
    draw::{KEYS, SIGNERS},
    world::{ACCOUNTS, Node},
};

/// Something of the running pod, its node or its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fact {
    PodName,
    Uid,
    NodeName,
    /// The address of a pod of its own, or of one that has that of this node.
    PodAddress(Option<Node>),
    HostAddress(Node),
    /// The processors of the node.
    Processors(Node),
    /// What a controller adds to the labels.
    Label,
    /// What it computes from the template; of the second side, if its template is another one.
    TemplateHash(bool),
    /// When the node's agent first saw the pod.
    FirstSeen,
    /// The value of a key that a container writes to a file of variables; perhaps it does not.
    Written(&'static str),
    /// The address of the Service `db`, if no document has it; perhaps there is none.
    OtherService,
    /// The address that the Service `db` of a document gets.
    Address,
    ApiServer,
    /// The ClusterTrustBundle `ca`, if no document has it; perhaps there is none.
    Bundle,
    /// The key of the certificate that the signer at this place of [`SIGNERS`] issues to an account.
    CertificateKey(usize, Account),
    /// That there is the account at this place in [`ACCOUNTS`].
    Account(usize),
}

/// The place of an account in [`ACCOUNTS`]; without one, `default`.
pub(super) type Account = Option<usize>;

/// Form of the text of a fact.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TextForm {
    Any,
    /// Letters, digits, `.`, `-` and `_`.
    Name,
    Address,
    Number,
    Pem,
    /// A name that is made of the workload's.
    PodName,
}

/// All of them.
pub(super) const FACTS: [Fact; 32] = [
    Fact::PodName,
    Fact::Uid,
    Fact::NodeName,
    Fact::PodAddress(None),
    Fact::PodAddress(Some(None)),
    Fact::PodAddress(Some(Some(1))),
    Fact::PodAddress(Some(Some(2))),
    Fact::HostAddress(None),
    Fact::HostAddress(Some(1)),
    Fact::HostAddress(Some(2)),
    Fact::Processors(None),
    Fact::Processors(Some(1)),
    Fact::Processors(Some(2)),
    Fact::Label,
    Fact::TemplateHash(false),
    Fact::TemplateHash(true),
    Fact::FirstSeen,
    Fact::Written(KEYS[0]),
    Fact::Written(KEYS[1]),
    Fact::Written(KEYS[2]),
    Fact::OtherService,
    Fact::Address,
    Fact::ApiServer,
    Fact::Bundle,
    Fact::CertificateKey(0, None),
    Fact::CertificateKey(0, Some(0)),
    Fact::CertificateKey(0, Some(1)),
    Fact::CertificateKey(1, None),
    Fact::CertificateKey(1, Some(0)),
    Fact::CertificateKey(1, Some(1)),
    Fact::Account(0),
    Fact::Account(1),
];

impl Fact {
    /// Whether `text` names it.
    pub(super) fn is_named(self, text: &str) -> bool {
        match self {
            Self::PodName => text == "metadata.name",
            Self::Uid => text == "metadata.uid",
            Self::NodeName => text == "spec.nodeName",
            Self::PodAddress(_) => text == "status.podIP",
            Self::HostAddress(_) => text == "status.hostIP",
            Self::Processors(_) => text == "limits.cpu",
            Self::Label | Self::TemplateHash(_) => text.starts_with("metadata.labels["),
            Self::FirstSeen => text == "metadata.annotations['kubernetes.io/config.seen']",
            Self::Written(key) => text == format!("e.env of volume files key {key}"),
            Self::OtherService => text == "service db",
            Self::Address => text == "clusterIP of service db",
            Self::ApiServer => text == "service kubernetes",
            Self::Bundle => text == "ClusterTrustBundle ca",
            Self::CertificateKey(signer, _) => {
                text == format!("pod certificate of {}", SIGNERS[signer])
            }
            Self::Account(place) => text == format!("ServiceAccount {}", ACCOUNTS[place]),
        }
    }

    pub(super) fn may_be_missing(self) -> bool {
        matches!(
            self,
            Self::Written(_) | Self::OtherService | Self::Bundle | Self::Account(_)
        )
    }

    pub(super) fn form(self) -> TextForm {
        match self {
            Self::PodAddress(_) | Self::HostAddress(_) | Self::Address => TextForm::Address,
            Self::Processors(_) => TextForm::Number,
            Self::PodName => TextForm::PodName,
            Self::Uid | Self::NodeName | Self::Label | Self::TemplateHash(_) => TextForm::Name,
            Self::CertificateKey(..) => TextForm::Pem,
            _ => TextForm::Any,
        }
    }
}

/// Whether a name may have it.
pub(super) fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ".-_".contains(letter)
}
