"""See .ci/chart, which runs this with the packages that it needs."""
import asyncio, base64, collections, http.server, itertools, json, os, pathlib, re, subprocess, sys, tempfile, threading

import helm_sdkpy, yaml

CHART = "deploy/chart"
# Labels of Helm's conventions, which the bases do not have.
HELM_LABELS = [
    "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"]
HELM_ANNOTATIONS = ["checksum/config", "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"]
NAME = "app.kubernetes.io/name"
# What the chart creates: group and version, resource, and whether it is in a namespace.
KINDS = {
    "Namespace": ("v1", "namespaces", False),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors", True),
    "ConfigMap": ("v1", "configmaps", True),
    "Secret": ("v1", "secrets", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "DaemonSet": ("apps/v1", "daemonsets", True),
    "Deployment": ("apps/v1", "deployments", True),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies", True),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ValidatingAdmissionPolicy": ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": ("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", False),
}


class Server(http.server.ThreadingHTTPServer):
    """An API server for Helm: it knows KINDS, and accepts what is created. With `keeps`, it has it until it is deleted."""

    daemon_threads = True

    def __init__(self, keeps=False):
        super().__init__(("127.0.0.1", 0), Handler)
        # By path.
        self.objects = {} if keeps else None
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, code=200):
        body = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        versions = [version for version, _, _ in KINDS.values()]
        known = [
            {"kind": kind, "name": resource, "singularName": kind.lower(), "namespaced": namespaced, "verbs": ["get", "create"]}
            for kind, (version, resource, namespaced) in KINDS.items() if path in (f"api/{version}", f"apis/{version}")]
        if path == "version":
            self.answer({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
        elif path == "api":
            self.answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "apis":
            groups = {version.split("/")[0]: version for version in versions if "/" in version}
            named = lambda version: {"groupVersion": version, "version": version.split("/")[1]}
            self.answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": group, "versions": [named(version)], "preferredVersion": named(version)}
                for group, version in groups.items()]})
        elif known:
            self.answer({"kind": "APIResourceList", "groupVersion": path.split("/", 1)[1], "resources": known})
        elif self.server.objects and path in self.server.objects:
            self.answer(self.server.objects[path])
        elif path.endswith("/secrets"):
            items = [value for key, value in (self.server.objects or {}).items() if key.startswith(f"{path}/")]
            self.answer({"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
        else:
            self.answer({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.split("?")[0].strip("/")
        if body.startswith(b"k8s\0"):
            # The release, which Helm stores in a Secret, as protobuf: gzip as Base64.
            name = re.search(rb"sh\.helm\.release\.v1\.[a-z0-9.-]+\.v[0-9]+", body).group().decode()
            data = re.search(rb"H4sI[A-Za-z0-9+/=]+", body).group()
            body = json.dumps({
                "kind": "Secret", "apiVersion": "v1", "type": "helm.sh/release.v1", "metadata": {
                    "name": name, "namespace": path.split("/")[3], "resourceVersion": "1", "labels": {"owner": "helm"}},
                "data": {"release": base64.b64encode(data).decode()}})
        value = json.loads(body)
        if self.server.objects is not None:
            created = f"{path}/{value['metadata']['name']}" if self.command == "POST" else path
            self.server.objects[created] = value
        self.answer(value, 201)

    do_PUT = do_POST

    def do_DELETE(self):
        # With options, which must not stay in the connection.
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = (self.server.objects or {}).pop(self.path.split("?")[0].strip("/"), None)
        self.answer({"kind": "Status", "status": "Success"} if found else {"kind": "Status", "code": 404}, 200 if found else 404)


class Helm:
    def __init__(self, work, keeps=False):
        self.kubeconfig = pathlib.Path(work) / f"kubeconfig-{keeps}"
        self.server = Server(keeps)
        address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}]}))

    def configuration(self, namespace="larder"):
        return helm_sdkpy.Configuration(namespace=namespace, kubeconfig=str(self.kubeconfig))

    def install(self, values, release="larder", namespace="larder"):
        """The objects that an installation creates, and its notes."""
        install = helm_sdkpy.Install(self.configuration(namespace))
        release = asyncio.run(install.run(release, CHART, values=values, wait=False, timeout=30))
        return list(yaml.safe_load_all(release["manifest"])), release["info"]["notes"]

    def uninstall(self, release="larder", namespace="larder"):
        uninstall = helm_sdkpy.Uninstall(self.configuration(namespace))
        asyncio.run(uninstall.run(release, wait=False, timeout=30))

    def lint(self):
        return asyncio.run(helm_sdkpy.Lint(self.configuration()).run(CHART))


def kustomize(base, components):
    """The objects of a base with components, as `kubectl apply -k` would create them."""
    with tempfile.TemporaryDirectory() as overlay:
        # kustomize takes no absolute paths.
        place = lambda name: os.path.relpath(pathlib.Path("deploy", name).resolve(), pathlib.Path(overlay).resolve())
        (pathlib.Path(overlay) / "kustomization.yaml").write_text(json.dumps({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [place(base)], "components": [place(component) for component in components]}))
        output = subprocess.run(["kubectl", "kustomize", overlay], check=True, stdout=subprocess.PIPE).stdout
    return list(yaml.safe_load_all(output))


def comparable(objects):
    """Objects by kind, namespace and name, without what Helm adds and without the hash in the ConfigMap's name."""
    def clean(value):
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, dict):
            value = {key: clean(item) for key, item in value.items() if key not in HELM_LABELS + HELM_ANNOTATIONS}
            # A patch of kustomize comes first, and the order says nothing.
            for field in value.keys() & {"volumes", "volumeMounts"}:
                value[field].sort(key=lambda item: item["name"])
            return value
        return re.sub(r"^larder-config-[a-z0-9]{10}$", "larder-config", value) if isinstance(value, str) else value

    found = {}
    for value in map(clean, objects):
        metadata = value["metadata"]
        # The label of the name is part of the conventions, too, where nothing selects by it.
        metadata.get("labels", {}).pop(NAME, None)
        for field in "labels", "annotations":
            if not metadata.get(field, True):
                del metadata[field]
        if value["kind"] == "ConfigMap":
            value["data"] = {key: yaml.safe_load(text) for key, text in value["data"].items()}
        key = (value["kind"], metadata.get("namespace"), metadata["name"])
        assert key not in found, f"twice: {key}"
        found[key] = value
    return found


def differences(ours, theirs, path=""):
    """The fields in which two values differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys(), key=str):
            yield from differences(ours.get(key), theirs.get(key), f"{path}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs)):
            yield from differences(*pair, f"{path}/{index}")
    elif ours != theirs:
        yield f"{path}: chart {json.dumps(ours)}, base {json.dumps(theirs)}"


def subsets(names):
    return itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))


def cases():
    """Name, values, base and components."""
    yield "agent", {"base": "agent"}, "agent", []
    for parts in subsets(["certificates", "staticPods"]):
        folders = {"certificates": "certificates", "staticPods": "static-pods"}
        yield " ".join(["node", *parts]), dict.fromkeys(parts, True), "node", [folders[part] for part in parts]
    for parts in subsets(["nodeIdentity", "hooks", "subpaths"]):
        folders = {"nodeIdentity": "node-identity", "hooks": "hooks", "subpaths": "subpaths"}
        values = {"base": "beside", "beside": dict.fromkeys(parts, True)}
        yield " ".join(["beside", *parts]), values, "beside", [f"beside/{folders[part]}" for part in parts]


REFUSED = [
    {"base": "virtual"},
    {"basis": "node"},
    {"nodeName": "a' || true"},
    {"image": {"tag": 1}},
    {"image": {"registry": "example.com"}},
    {"certificates": "yes"},
    {"config": {"nodeName": "virtual-1"}},
    {"config": {"mode": "Beside"}},
    {"base": "beside", "beside": {"hooks": "yes"}},
    {"base": "beside", "updateStrategy": {"type": "Recreate"}},
    {"podLabels": {"team": 1}},
    {"podMonitor": {"interval": "often"}},
    {"base": "beside", "beside": {"kubeletRootDir": "var/lib/kubelet"}},
    {"base": "beside", "config": {"beside": {"kubeletRootDir": "/kubelet"}}},
    # Values that would have no effect.
    {"beside": {"hooks": True}},
    {"base": "agent", "staticPods": True},
    {"updateStrategy": {"type": "OnDelete"}},
    {"base": "beside", "certificates": True},
]


def failures(helm):
    lint = helm.lint()
    # Below a warning there is only the advice to have an icon.
    found = [message for message in lint["Messages"] if message["Severity"] > 1] + (lint["Errors"] or [])
    print(f"lint: {lint['TotalChartsLinted']} chart, {len(found)} messages")
    yield from (f"lint: {message}" for message in found)

    for name, values, base, components in cases():
        theirs = comparable(kustomize(base, components))
        objects, notes = helm.install(values)
        # Helm makes the namespace itself, if at all. The notes say which label to give to it.
        namespace = theirs.pop(("Namespace", None, "larder"), {"metadata": {}})
        for label in namespace["metadata"].get("labels", {}).items():
            if "kubectl label namespace larder {}={}\n".format(*label) not in notes:
                yield f"{name}: the notes lack the label {label}"
        found = list(differences(*({" ".join(map(str, key)): value for key, value in side.items()}
                                   for side in (comparable(objects), theirs))))
        print(f"{name}: {len(theirs)} objects,", f"{len(found)} differences" if found else "the same")
        yield from (f"{name}: {difference}" for difference in found)

    for values in REFUSED:
        try:
            helm.install(values)
            yield f"not refused: {values}"
        except helm_sdkpy.InstallError as error:
            if "don't meet the specifications of the schema" not in str(error):
                yield f"refused, but not by the schema: {values}: {error}"
    print(f"{len(REFUSED)} wrong values")

    yield from names(helm)
    yield from options(helm)


def names(helm):
    """Two releases share no object and no selector, and refer to their own."""
    for base in "node", "beside":
        values = {"base": base, "staticPods": base == "node"}
        first, second = helm.install(values)[0], helm.install(values, "edge", "other")[0]
        keys = [set(comparable(objects)) for objects in (first, second)]
        yield from (f"{base}: both releases have {key}" for key in keys[0] & keys[1])
        selectors = [[value["spec"]["selector"] for value in objects if value["kind"] in ("DaemonSet", "Deployment")]
                     for objects in (first, second)]
        if selectors[0] == selectors[1]:
            yield f"{base}: both releases select by {selectors[0]}"
        text = json.dumps(list(comparable(second).values()))
        yield from (f"{base}: a second release refers to {word}" for word in ('"larder-', "account:larder:") if word in text)
        users = set(re.findall(r"system:serviceaccount:[a-z:-]*", text))
        if users != {"system:serviceaccount:other:edge-larder"}:
            yield f"{base}: the policies of a second release are for {users}"


def options(helm):
    """Values that the bases have no counterpart of."""
    values = {
        "image": {"repository": "registry.example.com/larder", "tag": "2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}], "nodeName": "edge-7", "staticPods": True,
        "config": {"watchScope": "Namespace", "kubeconfig": "/etc/node/kubeconfig"}, "serviceAccountName": "other",
        "resources": {"limits": {"memory": "1Gi"}}, "deliveredSizeLimit": "128Mi", "networkPolicy": {"enabled": False},
        "nodeSelector": {"zone": "a"}, "tolerations": [{"key": "edge", "operator": "Exists"}],
        "priorityClassName": "high", "affinity": {"nodeAffinity": {}}, "extraArgs": ["--log-format=text"],
        "podLabels": {"team": "edge", "app.kubernetes.io/name": "other"},
        "podAnnotations": {"example.com/scrape": "yes"},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
        "extraContainers": [{"name": "provider", "image": "provider"}],
        "extraVolumes": [{"name": "node", "secret": {"secretName": "node"}}],
        "extraVolumeMounts": [{"name": "node", "mountPath": "/etc/node"}]}
    objects = comparable(helm.install(values)[0])
    kinds = collections.Counter(kind for kind, _, _ in objects)
    template = objects["Deployment", "larder", "larder"]["spec"]["template"]
    pod = template["spec"]
    monitor = objects["PodMonitor", "larder", "larder"]
    config = objects["ConfigMap", "larder", "larder-config"]["data"]["agent.yaml"]
    policy = objects["ValidatingAdmissionPolicy", None, "larder-static-pods"]["spec"]
    larder, provider = pod["containers"]
    beside, _ = helm.install({"base": "beside", "updateStrategy": {"type": "OnDelete"}, "extraArgs": ["--dry-run"],
        "priorityClassName": "high", "affinity": {"nodeAffinity": {}}, "nodeSelector": {"zone": "a"}, "config": {"beside": {"namespaces": ["prod"]}},
        "beside": {"kubeletRootDir": "/kubelet", "seLinuxOptions": {"type": "spc_t"}, "nodeIdentity": True,
                   "kubeletKubeconfig": "/kubeconfig"}})
    beside = comparable(beside)
    workload = beside["DaemonSet", "larder", "larder"]["spec"]
    node = workload["template"]["spec"]
    expected = [
        (larder["image"], "registry.example.com/larder:2"), (larder["imagePullPolicy"], "Always"),
        (larder["resources"], {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "1Gi"}}),
        (larder["volumeMounts"][-1], values["extraVolumeMounts"][0]), (provider, values["extraContainers"][0]),
        (pod["volumes"][-1], values["extraVolumes"][0]), (pod["volumes"][1]["emptyDir"]["sizeLimit"], "128Mi"),
        (pod["serviceAccountName"], "other"), (pod["nodeSelector"], values["nodeSelector"]),
        (pod["tolerations"], values["tolerations"]), (pod["imagePullSecrets"], values["imagePullSecrets"]),
        ((kinds["ServiceAccount"], kinds["NetworkPolicy"]), (0, 0)),
        ((config["nodeName"], config["watchScope"], config["kubeconfig"]), ("edge-7", "Namespace", "/etc/node/kubeconfig")),
        (policy["variables"][0]["expression"], "'edge-7'"),
        (policy["matchConditions"][0]["expression"], "request.userInfo.username == 'system:serviceaccount:larder:other'"),
        (objects["ClusterRoleBinding", None, "larder"]["subjects"][0]["name"], "other"),
        (beside["ConfigMap", "larder", "larder-config"]["data"]["agent.yaml"]["beside"],
         {"kubeletRootDir": "/kubelet", "lockDir": "/run/larder", "namespaces": ["prod"]}),
        (node["nodeSelector"], {"kubernetes.io/os": "linux", "zone": "a"}),
        (node["containers"][0]["securityContext"]["seLinuxOptions"], {"type": "spc_t"}),
        (node["containers"][0]["args"][-2:], ["--kubeconfig=/kubeconfig", "--dry-run"]),
        (workload["updateStrategy"], {"type": "OnDelete"}),
        ([(spec["priorityClassName"], spec["affinity"]) for spec in (pod, node)], [("high", {"nodeAffinity": {}})] * 2),
        (larder["args"][-1], "--log-format=text"),
        # Nothing takes the pods away from the chart's own selector.
        (template["metadata"]["labels"], {"team": "edge", NAME: "larder"}),
        (template["metadata"]["annotations"]["example.com/scrape"], "yes"),
        (monitor["metadata"]["labels"], {"release": "prometheus"}),
        (monitor["spec"]["podMetricsEndpoints"], [{"port": "metrics", "interval": "15s"}]),
        ([mount["mountPath"] for mount in node["containers"][0]["volumeMounts"]][1:], ["/kubeconfig", "/kubelet", "/run/larder", "/run/larder-agent"]),
        ([volume["hostPath"]["path"] for volume in node["volumes"] if "hostPath" in volume], ["/kubeconfig", "/kubelet", "/run/larder"]),
    ]
    for index, (found, wanted) in enumerate(expected):
        if found != wanted:
            yield f"option {index}: {json.dumps(found)} instead of {json.dumps(wanted)}"
    print(f"{len(expected)} options")


def removal(helm):
    """After an uninstallation nothing is left of what the installation created."""
    values = [{"base": "beside", "beside": {"hooks": True}, "podMonitor": {"enabled": True}},
              {"certificates": True, "staticPods": True}]
    for value in values:
        helm.install(value)
        created = len(helm.server.objects)
        helm.uninstall()
        print(f"removal: {created} objects, {len(helm.server.objects)} left")
        yield from (f"removal: {path} is left" for path in helm.server.objects)
        if created < 10:
            yield f"removal: only {created} objects were created"


def main():
    with tempfile.TemporaryDirectory() as work:
        found = list(itertools.chain(removal(Helm(work, keeps=True)), failures(Helm(work))))
    for failure in found:
        print("FAILED", failure, file=sys.stderr)
    sys.exit(bool(found))


main()
