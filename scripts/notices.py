"""Prints THIRD_PARTY_NOTICES.txt: the crates of the program `rlaas` with their licenses.

The crates are those that `cargo tree` shows for the targets of releases, without what is only needed to
build or to test. The license texts are the files in each crate. Of a crate that offers a choice, the MIT
license is taken where there is one.
"""

import json
import pathlib
import re
import subprocess
import sys

TARGETS = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl", "aarch64-apple-darwin"]
LICENSE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-._].*)?", re.IGNORECASE)
# What else is part of the program, with its license.
VENDORED = {
    "uPlot 1.6.32 (MIT), which draws charts": "crates/simulation/assets/uplot/LICENSE",
    "musl 1.2.5 (MIT), the C library of the programs for Linux": "scripts/musl-copyright.txt",
}
HEAD = """Third-party notices

The program `rlaas` contains the crates and scripts that this file lists. Each text stands once, below the crates that
come with it. `scripts/notices.sh --update` writes this file.
"""


def cargo(*arguments):
    return subprocess.run(
        ["cargo", *arguments, "--locked"], check=True, capture_output=True, text=True
    ).stdout


def crates_of_the_program():
    """The (name, version) of each crate, without those of this workspace."""
    crates = set()
    for target in TARGETS:
        tree = cargo("tree", "--package", "rlaas", "--edges", "normal", "--prefix", "none",
                     "--format", "{p}", "--target", target)
        for line in tree.splitlines():
            if line and "(/" not in line:
                name, version = line.split()[:2]
                crates.add((name, version.removeprefix("v")))
    return crates


def license_files(package):
    """The files whose texts apply to a package."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir()
                   if path.is_file() and LICENSE_FILE.fullmatch(path.name))
    if package["license_file"]:
        files.append(folder / package["license_file"])
    is_choice = "AND" not in (package["license"] or "AND")
    mit = [path for path in files if "mit" in path.name.lower()]
    return mit if is_choice and mit else files


def main():
    packages = json.loads(cargo("metadata", "--format-version", "1"))["packages"]
    by_name = {(package["name"], package["version"]): package for package in packages}
    by_text = {}
    for crate in sorted(crates_of_the_program()):
        package = by_name[crate]
        expression = (package["license"] or "see the text").replace("/", " OR ").replace("  ", " ")
        line = f"- {crate[0]} {crate[1]} ({expression})"
        texts = [path.read_text(errors="replace") for path in license_files(package)]
        for text in texts or [""]:
            # Line ends and blank lines at the ends say nothing.
            text = "\n".join(each.rstrip() for each in text.strip("\ufeff\r\n").splitlines())
            lines = by_text.setdefault(text, [])
            if line not in lines:
                lines.append(line)
    for line, file in VENDORED.items():
        by_text[pathlib.Path(file).read_text().strip()] = [line]
    print(HEAD)
    without_text = by_text.pop("", [])
    # Texts of many crates first.
    for text, lines in sorted(by_text.items(), key=lambda item: (-len(item[1]), item[1])):
        print("License", "", *lines, "", "````text", text, "````", "", sep="\n")
    print("Crates without a license file", "",
          "These name their license only. LICENSE-APACHE, beside this file, has the text of Apache-2.0; the",
          "text of MIT stands above.", "", *without_text, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
