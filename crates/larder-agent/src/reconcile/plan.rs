//! What a pod asks of the agent, and what each part of it reads. Pure.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use larder_objects::Kind;
use larder_projection::{Needs, SourceKey, TokenRequest, VolumeKind, containers, is_used};
use smol_str::SmolStr;

use crate::events::About;

/// Something that must be at hand before a part of a pod can be delivered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Need {
    /// A ConfigMap or Secret of the pod's namespace, optional ones included.
    Object(Kind, SmolStr),
    /// A token of the pod's service account.
    Token(TokenRequest),
    /// The ClusterTrustBundles.
    TrustBundles,
    /// The certificate of one source of a projected volume.
    PodCertificate(SourceKey),
    /// The Services.
    Services,
    /// The Node.
    Node,
}

/// Reads on from "waiting for".
impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(kind, name) => write!(f, "{} {:?}", kind.singular(), name.as_str()),
            Self::Token(_) => f.write_str("a service account token"),
            Self::TrustBundles => f.write_str("the ClusterTrustBundles"),
            Self::PodCertificate(_) => f.write_str("a pod certificate"),
            Self::Services => f.write_str("the Services"),
            Self::Node => f.write_str("the Node"),
        }
    }
}

/// What is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The volume of this name.
    Volume(String, VolumeKind),
    /// The environment of the container of this name.
    Environment(String),
}

impl Target {
    /// `volume` or `environment`.
    pub(super) const fn noun(&self) -> &'static str {
        match self {
            Self::Volume(..) => "volume",
            Self::Environment(_) => "environment",
        }
    }

    /// The same for an event.
    pub(super) fn about(&self) -> About<'_> {
        match self {
            Self::Volume(name, _) => About::Volume(name),
            Self::Environment(name) => About::Container(name),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name, _) => write!(f, "volume {name}"),
            Self::Environment(name) => write!(f, "environment of {name}"),
        }
    }
}

/// One part of a pod: delivered, late or failing by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) target: Target,
    /// Each once. As short as can be: a node has some hundred parts.
    pub(super) reads: Box<[Need]>,
}

/// The parts of `pod`: its volumes in the order of the pod, then its environments: init, regular, ephemeral.
pub(super) fn parts(pod: &Pod) -> Vec<Part> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let volumes = volumes.unwrap_or_default().iter();
    let volumes = volumes
        // What no container mounts is not set up: a missing object there blocks nothing.
        .filter(|volume| is_used(pod, &volume.name))
        .filter_map(|volume| {
            let kind = VolumeKind::of(volume)?;
            let mut needs = Needs::default();
            needs.add_volume(volume);
            Some(Part {
                target: Target::Volume(volume.name.clone(), kind),
                reads: reads(&needs),
            })
        });
    let environments = containers(pod).map(|container| {
        let mut needs = Needs::default();
        needs.add_container(container);
        Part {
            target: Target::Environment(container.name.to_owned()),
            reads: reads(&needs),
        }
    });
    volumes.chain(environments).collect()
}

fn reads(needs: &Needs<'_>) -> Box<[Need]> {
    let object = |kind| move |name: &&str| Need::Object(kind, SmolStr::new(name));
    let config_maps = needs.config_maps.iter().map(object(Kind::ConfigMap));
    let secrets = needs.secrets.iter().map(object(Kind::Secret));
    let tokens = needs.tokens.iter().cloned().map(Need::Token);
    let certificates = needs.pod_certificates.iter();
    let certificates = certificates.map(|(key, _)| Need::PodCertificate(key.clone()));
    let facts = [
        (needs.services, Need::Services),
        (needs.node, Need::Node),
        (!needs.trust_bundles.is_empty(), Need::TrustBundles),
    ];
    let facts = facts
        .into_iter()
        .filter_map(|(read, need)| read.then_some(need));
    config_maps
        .chain(secrets)
        .chain(tokens)
        .chain(certificates)
        .chain(facts)
        .collect()
}
