# Sourced by `deb` and `rpm` after common.sh: fills the directory $tree with the files that both packages have.
[ -x "$dist/larder" ] && [ -x "$dist/larder-sidecar" ] || packaging/binary
[ -e "$dist/THIRD-PARTY" ] || packaging/licenses
larder=$dist/larder

share=$tree/usr/share
install -D -m 755 -t "$tree/usr/bin" "$larder" "$dist/larder-sidecar"
# `kubectl larder …` is the same command.
ln -s larder "$tree/usr/bin/kubectl-larder"
"$larder" completion kubectl >"$tree/usr/bin/kubectl_complete-larder"
chmod 755 "$tree/usr/bin/kubectl_complete-larder"
install -D -m 644 -t "$tree/usr/lib/systemd/system" packaging/larder.service packaging/larder-wait@.service
install -D -m 644 packaging/agent.yaml "$tree/etc/larder/agent.yaml"
# Manifests may hold Secrets.
install -d -m 750 "$tree/etc/larder/manifests"

mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
    "$share/fish/vendor_completions.d"
"$larder" man >"$share/man/man1/larder.1"
# The subcommands that the help lists. The page of `larder sidecar` is that of the executable, too.
for command in $("$larder" --help | sed -n '/^Commands:/,/^$/ s/^  \([a-z-]*\) .*/\1/p'); do
    [ "$command" = help ] || "$larder" man "$command" >"$share/man/man1/larder-$command.1"
done
gzip -9n "$share"/man/man1/*.1
"$larder" completion bash >"$share/bash-completion/completions/larder"
"$larder" completion zsh >"$share/zsh/vendor-completions/_larder"
"$larder" completion fish >"$share/fish/vendor_completions.d/larder.fish"

doc=$share/doc/larder
mkdir -p "$doc/examples"
install -m 644 README.md "$doc/"
# The tree as the links in it have it.
for file in ARCHITECTURE.md BENCHMARKS.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md $(git ls-files docs deploy monitoring packaging clients); do
    install -D -m 644 "$file" "$doc/$file"
done
gzip -9nc "$dist/THIRD-PARTY" >"$doc/THIRD-PARTY.gz"
install -m 644 examples/*.yaml "$doc/examples/"
