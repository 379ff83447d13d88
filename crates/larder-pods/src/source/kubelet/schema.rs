//! The fields of a pod that larder reads, by their numbers in the protobuf form.
//!
//! Field numbers: Kubernetes 1.37, the `generated.proto` of `api/core/v1` and `apimachinery/pkg/apis/meta/v1`. All
//! others are left out: what is not here is not read anywhere.

use larder_objects::protobuf::Schema;

#[rustfmt::skip]
pub(super) const SCHEMA: Schema = Schema { is_complete: false, messages: &[
    ("Metadata", "1 name Text, 2 generateName Text, 3 namespace Text, 5 uid Text, 6 resourceVersion Text, \
        7 generation PlainInt, 8 creationTimestamp Time, 9 deletionTimestamp Time, 10 deletionGracePeriodSeconds Int, \
        11 labels {Text}, 12 annotations {Text}, 13 ownerReferences [Owner], 14 finalizers [Text]"),
    ("Owner", "1 kind Text, 3 name Text, 4 uid Text, 5 apiVersion Text, 6 controller Bool, 7 blockOwnerDeletion Bool"),
    ("LabelSelector", "1 matchLabels {Text}, 2 matchExpressions [LabelSelectorRequirement]"),
    ("LabelSelectorRequirement", "1 key Text, 2 operator Text, 3 values [Text]"),
    ("Pod", "1 metadata Metadata, 2 spec PodSpec, 3 status PodStatus"),
    ("PodSpec", "1 volumes [Volume], 2 containers [Container], 3 restartPolicy Text, \
        4 terminationGracePeriodSeconds Int, 8 serviceAccountName Text, 10 nodeName Text, \
        11 hostNetwork Bool, 12 hostPID Bool, 13 hostIPC Bool, 14 securityContext PodSecurityContext, \
        15 imagePullSecrets [LocalObjectReference], 16 hostname Text, 17 subdomain Text, \
        20 initContainers [Container], 21 automountServiceAccountToken Bool, 24 priorityClassName Text, \
        25 priority Int, 27 shareProcessNamespace Bool, 30 enableServiceLinks Bool, \
        34 ephemeralContainers [EphemeralContainer], 36 os PodOS, 37 hostUsers Bool, \
        40 resources ResourceRequirements"),
    ("PodOS", "1 name Text"),
    ("LocalObjectReference", "1 name Text"),
    ("Volume", "1 name Text, 2 volumeSource <VolumeSource>"),
    ("VolumeSource", "1 hostPath HostPathVolumeSource, 2 emptyDir EmptyDirVolumeSource, 6 secret SecretVolumeSource, \
        16 downwardAPI DownwardAPIVolumeSource, 19 configMap ConfigMapVolumeSource, \
        26 projected ProjectedVolumeSource, 28 csi CSIVolumeSource"),
    ("HostPathVolumeSource", "1 path Text, 2 type Text"),
    ("EmptyDirVolumeSource", "1 medium Text, 2 sizeLimit Quantity, 3 mode Int"),
    ("SecretVolumeSource", "1 secretName Text, 2 items [KeyToPath], 3 defaultMode Int, 4 optional Bool, 5 defaultUser Int"),
    ("ConfigMapVolumeSource", "1 localObjectReference <LocalObjectReference>, 2 items [KeyToPath], 3 defaultMode Int, \
        4 optional Bool, 5 defaultUser Int"),
    ("DownwardAPIVolumeSource", "1 items [DownwardAPIVolumeFile], 2 defaultMode Int, 3 defaultUser Int"),
    ("ProjectedVolumeSource", "1 sources [VolumeProjection], 2 defaultMode Int, 3 defaultUser Int"),
    ("KeyToPath", "1 key Text, 2 path Text, 3 mode Int, 4 user Int"),
    ("DownwardAPIVolumeFile", "1 path Text, 2 fieldRef ObjectFieldSelector, 3 resourceFieldRef ResourceFieldSelector, 4 mode Int, \
        5 user Int"),
    ("VolumeProjection", "1 secret SecretProjection, 2 downwardAPI DownwardAPIProjection, 3 configMap ConfigMapProjection, \
        4 serviceAccountToken ServiceAccountTokenProjection, \
        5 clusterTrustBundle ClusterTrustBundleProjection, 6 podCertificate PodCertificateProjection"),
    ("SecretProjection", "1 localObjectReference <LocalObjectReference>, 2 items [KeyToPath], 4 optional Bool"),
    ("DownwardAPIProjection", "1 items [DownwardAPIVolumeFile]"),
    ("ConfigMapProjection", "1 localObjectReference <LocalObjectReference>, 2 items [KeyToPath], 4 optional Bool"),
    ("ServiceAccountTokenProjection", "1 audience Text, 2 expirationSeconds Int, 3 path Text, 4 user Int"),
    ("ClusterTrustBundleProjection", "1 name Text, 2 signerName Text, 3 labelSelector LabelSelector, 4 path Text, 5 optional Bool, \
        6 user Int"),
    ("PodCertificateProjection", "1 signerName Text, 2 keyType Text, 3 maxExpirationSeconds Int, 4 credentialBundlePath Text, \
        5 keyPath Text, 6 certificateChainPath Text, 7 userAnnotations {Text}, 8 user Int"),
    ("CSIVolumeSource", "1 driver Text, 2 readOnly Bool, 5 nodePublishSecretRef LocalObjectReference"),
    ("ObjectFieldSelector", "1 apiVersion Text, 2 fieldPath Text"),
    ("ResourceFieldSelector", "1 containerName Text, 2 resource Text, 3 divisor Quantity"),
    ("ConfigMapKeySelector", "1 localObjectReference <LocalObjectReference>, 2 key Text, 3 optional Bool"),
    ("SecretKeySelector", "1 localObjectReference <LocalObjectReference>, 2 key Text, 3 optional Bool"),
    ("FileKeySelector", "1 volumeName Text, 2 path Text, 3 key Text, 4 optional Bool"),
    ("Container", "1 name Text, 2 image Text, 3 command [Text], 4 args [Text], 5 workingDir Text, \
        6 ports [ContainerPort], 7 env [EnvVar], 8 resources ResourceRequirements, \
        9 volumeMounts [VolumeMount], 12 lifecycle Lifecycle, 15 securityContext SecurityContext, \
        19 envFrom [EnvFromSource], 24 restartPolicy Text"),
    ("EphemeralContainer", "1 ephemeralContainerCommon <EphemeralContainerCommon>, 2 targetContainerName Text"),
    ("EphemeralContainerCommon", "1 name Text, 2 image Text, 3 command [Text], 4 args [Text], 5 workingDir Text, \
        6 ports [ContainerPort], 7 env [EnvVar], 8 resources ResourceRequirements, \
        9 volumeMounts [VolumeMount], 12 lifecycle Lifecycle, 15 securityContext SecurityContext, \
        19 envFrom [EnvFromSource], 24 restartPolicy Text"),
    ("ContainerPort", "1 name Text, 3 containerPort PlainInt, 4 protocol Text"),
    ("EnvFromSource", "1 prefix Text, 2 configMapRef ConfigMapEnvSource, 3 secretRef SecretEnvSource"),
    ("ConfigMapEnvSource", "1 localObjectReference <LocalObjectReference>, 2 optional Bool"),
    ("SecretEnvSource", "1 localObjectReference <LocalObjectReference>, 2 optional Bool"),
    ("EnvVar", "1 name Text, 2 value Text, 3 valueFrom EnvVarSource"),
    ("EnvVarSource", "1 fieldRef ObjectFieldSelector, 2 resourceFieldRef ResourceFieldSelector, \
        3 configMapKeyRef ConfigMapKeySelector, 4 secretKeyRef SecretKeySelector, \
        5 fileKeyRef FileKeySelector"),
    ("ResourceRequirements", "1 limits {Quantity}, 2 requests {Quantity}"),
    ("VolumeMount", "1 name Text, 2 readOnly Bool, 3 mountPath Text, 4 subPath Text, 5 mountPropagation Text, \
        6 subPathExpr Text, 7 recursiveReadOnly Text, 8 bindMountOptions [Text]"),
    ("Lifecycle", "3 stopSignal Text"),
    ("SecurityContext", "4 runAsUser Int, 5 runAsNonRoot Bool, 8 runAsGroup Int"),
    ("PodSecurityContext", "2 runAsUser Int, 3 runAsNonRoot Bool, 4 supplementalGroups [Int], 5 fsGroup Int, 6 runAsGroup Int"),
    ("PodStatus", "1 phase Text, 2 conditions [PodCondition], 3 message Text, 4 reason Text, 5 hostIP Text, \
        6 podIP Text, 7 startTime Time, 8 containerStatuses [ContainerStatus], 9 qosClass Text, \
        10 initContainerStatuses [ContainerStatus], 12 podIPs [PodIP], \
        13 ephemeralContainerStatuses [ContainerStatus], 16 hostIPs [HostIP]"),
    ("PodCondition", "1 type Text, 2 status Text, 4 lastTransitionTime Time, 5 reason Text, 6 message Text"),
    ("PodIP", "1 ip Text"),
    ("HostIP", "1 ip Text"),
    ("ContainerStatus", "1 name Text, 2 state ContainerState, 3 lastState ContainerState, 4 ready Bool, \
        5 restartCount PlainInt, 6 image Text, 7 imageID Text, 8 containerID Text, 9 started Bool"),
    ("ContainerState", "1 waiting ContainerStateWaiting, 2 running ContainerStateRunning, \
        3 terminated ContainerStateTerminated"),
    ("ContainerStateWaiting", "1 reason Text, 2 message Text"),
    ("ContainerStateRunning", "1 startedAt Time"),
    ("ContainerStateTerminated", "1 exitCode PlainInt, 2 signal PlainInt, 3 reason Text, 4 message Text, 5 startedAt Time, \
        6 finishedAt Time, 7 containerID Text"),
] };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_a_scalar_or_a_message() {
        assert_eq!(SCHEMA.unknown_types(), [""; 0]);
    }
}
