"""Chooses the inputs that stay in a fuzz corpus: python3 .ci/corpus.py CONTROL_FILE prints their paths, one a line.

The control file of libFuzzer's `-set_cover_merge=1` has the features that each input reaches. The inputs with
the most features that none before has are taken, and of equals the smaller one: until nothing is new, or 40 are there.
"""

import sys

MOST = 40


def read(path):
    """Size and features of each input, by its path."""
    with open(path, encoding="utf-8") as file:
        count, _of_first_corpus = int(next(file)), next(file)
        paths = [next(file).rstrip("\n") for _ in range(count)]
        sizes, features = {}, {}
        for line in file:
            kind, number, *values = line.split()
            if kind == "STARTED":
                sizes[int(number)] = int(values[0])
            elif kind == "FT":
                features[int(number)] = set(map(int, values))
    return [(path, sizes[number], features[number]) for number, path in enumerate(paths) if number in features]


def chosen(inputs):
    """The inputs to keep, and the features that they and all inputs reach."""
    covered, kept = set(), []
    while inputs and len(kept) < MOST:
        best = max(inputs, key=lambda item: (len(item[2] - covered), -item[1], item[0]))
        if not best[2] - covered:
            break
        inputs.remove(best)
        covered |= best[2]
        kept.append(best[0])
    return kept, covered


def main():
    inputs = read(sys.argv[1])
    everything = set().union(*(features for _, _, features in inputs))
    count = len(inputs)
    kept, covered = chosen(inputs)
    print(f"{len(kept)} of {count} inputs reach {len(covered)} of {len(everything)} features", file=sys.stderr)
    print("\n".join(kept))


main()
