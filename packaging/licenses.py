"""Prints the licenses of other authors' crates, from `cargo metadata` (standard input), for packaging/licenses.

Argument: a file with the output of `cargo tree` that names the crates in the executables. A crate without a text of its
own is listed with its license's name; a crate without either ends the program.
"""

import collections
import json
import pathlib
import re
import sys

TEXTS = re.compile(r"(LICEN[SC]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)


def main():
    with open(sys.argv[1], encoding="utf-8") as lines:
        words = [line.split() for line in lines if line.strip()]
    linked = {(name, version.removeprefix("v")) for name, version, *_ in words}
    packages = [p for p in json.load(sys.stdin)["packages"] if (p["name"], p["version"]) in linked]
    crates_by_text, without = collections.defaultdict(list), []
    for package in sorted(packages, key=lambda p: (p["name"], p["version"])):
        # Those of this workspace have no source elsewhere.
        if package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package['license'] or 'see its text'})"
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if TEXTS.match(path.name) and path.is_file())
        if not files and not package["license"]:
            sys.exit(f"{name}: no license")
        if not files:
            without.append(name)
        for path in files:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            crates_by_text["\n".join(line.rstrip() for line in text.splitlines())].append(name)
    print("The executables of larder contain code of these crates.\n")
    for text, names in sorted(crates_by_text.items(), key=lambda item: item[1]):
        print("=" * 80, *names, "-" * 80, text, "", sep="\n")
    print("=" * 80, "Without a text in their package:", *without, sep="\n")


if __name__ == "__main__":
    main()
