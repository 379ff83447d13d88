"""Turns `cargo metadata` (standard input) into a CycloneDX 1.5 document, for packaging/sbom.

Arguments: the time stamp, a file with the output of `cargo tree` that names the crates in the executable, and
Cargo.lock, which has their checksums.
"""

import datetime
import json
import sys
import tomllib
import uuid

ROOT = "larder-cli"


def main():
    epoch, tree, lock = sys.argv[1:]
    metadata = json.load(sys.stdin)
    with open(tree, encoding="utf-8") as lines:
        # "name v1.2.3 (path) (*)"
        words = [line.split() for line in lines if line.strip()]
    linked = {(name, version.removeprefix("v")) for name, version, *_ in words}
    with open(lock, "rb") as file:
        checksums = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]}

    packages = {p["id"]: p for p in metadata["packages"] if (p["name"], p["version"]) in linked}
    [root] = [p for p in packages.values() if p["name"] == ROOT]
    components = sorted((p for p in packages.values() if p is not root), key=lambda p: (p["name"], p["version"]))
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    dependencies = [
        {
            "ref": purl(package),
            "dependsOn": sorted({purl(packages[d]) for d in normal_dependencies(nodes[id]) if d in packages}),
        }
        for id, package in sorted(packages.items(), key=lambda item: purl(item[1]))
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).isoformat(),
            "component": component(root, "application", checksums),
        },
        "components": [component(p, "library", checksums) for p in components],
        "dependencies": dependencies,
    }
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}"
    json.dump(document, sys.stdout, indent=2)
    print()


def normal_dependencies(node):
    return [d["pkg"] for d in node["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, type_, checksums):
    result = {
        "type": type_,
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    }
    if package["license"]:
        # Cargo's older form of "OR".
        result["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        result["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return result


if __name__ == "__main__":
    main()
