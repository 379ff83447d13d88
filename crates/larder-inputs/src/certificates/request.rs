//! PodCertificateRequests: creates and watches them, and reads their results.

use std::{collections::BTreeMap, sync::Arc};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString, NamespaceResourceScope,
    api::{
        certificates::v1::{PodCertificateRequestSpec, PodCertificateRequestStatus},
        core::v1::{Node, PodCertificateProjection, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use larder_objects::ObjectKey;
use larder_pods::StoredPod;
use larder_projection::quote;
use larder_transport::path::{PathError, Resource, field_selector};
use larder_watch::request;
use serde::Deserialize;

use super::{
    Shared,
    key::{PodKey, PodKeyError},
};
use crate::{
    last_good::LastGood,
    served_version::{ServedCollection, ServedObject, ServedSpec},
};

const NODES: Resource = Resource::core("nodes");
const SERVICE_ACCOUNTS: Resource = Resource::core("serviceaccounts");

const NO_BODY: Option<&()> = None;

pub(super) type PodCertificateRequest = ServedObject<PodCertificateRequestSpec>;

impl ServedSpec for PodCertificateRequestSpec {
    const KIND: &'static str = "PodCertificateRequest";
    const PLURAL: &'static str = "podcertificaterequests";
    type Scope = NamespaceResourceScope;
    type Status = PodCertificateRequestStatus;
}

/// The part of the answer that is read.
#[derive(Deserialize)]
struct CreatedRequest {
    metadata: ObjectMeta,
}

/// Requests by namespace and name.
pub(super) type Requests = BTreeMap<ObjectKey, Arc<PodCertificateRequest>>;

/// A request could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateRequestError {
    #[error("the API server serves no PodCertificateRequests")]
    NotServed,
    #[error("invalid namespace, service account or node name")]
    Path(#[from] PathError),
    #[error("cannot read the {0}")]
    Read(&'static str, #[source] larder_watch::RequestError),
    #[error("cannot create a PodCertificateRequest")]
    Create(#[source] larder_watch::RequestError),
    #[error("cannot request a certificate")]
    Key(#[from] PodKeyError),
}

/// The times of a certificate, by the API server's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    pub(super) not_before: Timestamp,
    pub(super) begin_refresh_at: Timestamp,
    pub(super) not_after: Timestamp,
}

/// How a request ends.
#[derive(Debug)]
pub(super) enum Ending {
    /// The chain as PEM.
    Issued(String, Validity),
    /// Rejected for good, with the kubelet's text.
    Refused(String),
}

impl Shared {
    /// Requests a certificate for `key`; returns the name of the request.
    pub(super) async fn create(
        &self,
        pod: &StoredPod,
        source: &PodCertificateProjection,
        key: &PodKey,
    ) -> Result<String, CertificateRequestError> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let pod_key = pod.key();
        let namespace = pod_key.namespace.as_str();
        let account = pod.service_account();
        let path = SERVICE_ACCOUNTS.in_namespace(namespace)?.object(account)?;
        let held = request::<ServiceAccount>(&self.client, Method::GET, path.as_str(), NO_BODY)
            .await
            .map_err(|error| CertificateRequestError::Read("service account", error))?;
        let path = NODES.collection().object(&self.name)?;
        let node = request::<Node>(&self.client, Method::GET, path.as_str(), NO_BODY)
            .await
            .map_err(|error| CertificateRequestError::Read("node", error))?;
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod_key.name.to_string(),
            uid: pod.uid().to_owned(),
            ..OwnerReference::default()
        };
        let wanted = PodCertificateRequest {
            metadata: ObjectMeta {
                generate_name: Some("req-".to_owned()),
                namespace: Some(namespace.to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                max_expiration_seconds: source.max_expiration_seconds,
                node_name: self.name.clone(),
                node_uid: text(&node.metadata.uid),
                pod_name: pod_key.name.to_string(),
                pod_uid: pod.uid().to_owned(),
                service_account_name: account.to_owned(),
                service_account_uid: text(&held.metadata.uid),
                signer_name: source.signer_name.clone(),
                stub_pkc_s10_request: ByteString(key.stub_request()?),
                unverified_user_annotations: source.user_annotations.clone(),
            },
            status: None,
        };
        match self.served.create(&self.client, namespace, &wanted).await {
            Ok(CreatedRequest { metadata }) => Ok(text(&metadata.name)),
            Err(error) if error.is_not_served() => Err(CertificateRequestError::NotServed),
            Err(error) => Err(CertificateRequestError::Create(error)),
        }
    }

    /// Keeps `requests` in sync with the API server's requests of the node. Ends only when dropped.
    pub(super) async fn follow_requests(&self) {
        let selector = field_selector("spec.nodeName", &self.name);
        let (client, context) = (&self.client, &self.context);
        let mut collection: ServedCollection<PodCertificateRequest> =
            ServedCollection::new(client, &self.served, Some(&selector), context);
        self.requests.send_replace(Requests::new());
        let mut requests = LastGood::new();
        loop {
            let event = collection.next().await;
            if requests.take(event, |request| Some(Arc::new(request))) {
                self.requests.send_replace(requests.known.clone());
            }
        }
    }
}

/// How `request` has ended; `None` while it waits for its signer.
pub(super) fn ending(request: &PodCertificateRequest) -> Option<Ending> {
    let status = request.status.as_ref()?;
    for condition in status.conditions.iter().flatten() {
        let refused = |how: &str| {
            Ending::Refused(format!(
                "PodCertificateRequest was permanently {how}: reason={} message={}",
                quote(&condition.reason),
                quote(&condition.message)
            ))
        };
        match condition.type_.as_str() {
            "Denied" => return Some(refused("denied")),
            "Failed" => return Some(refused("failed")),
            "Issued" => {
                let validity = Validity {
                    not_before: status.not_before.as_ref()?.0,
                    begin_refresh_at: status.begin_refresh_at.as_ref()?.0,
                    not_after: status.not_after.as_ref()?.0,
                };
                return Some(Ending::Issued(status.certificate_chain.clone()?, validity));
            }
            _ => {}
        }
    }
    None
}
