# Sourced by the scripts beside it: makes .venv-proto, which holds the compiler and buf, and defines `compile`.
# The extra `proto` in pyproject.toml has their versions.
venv=.venv-proto
if [ ! -x "$venv/bin/protoc-gen-mypy" ] || [ ! -x "$venv/bin/buf" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["proto"], sep="\n")' > "$venv/requirements.txt"
  "$venv/bin/pip" install -q -r "$venv/requirements.txt"
fi
googleapis=$("$venv/bin/python" -c 'import google.api, pathlib; print(pathlib.Path(google.api.__path__[0]).parents[1])')

# usage: compile PROTOS_DIR OPTION_OR_FILE...
compile() {
  local protos=$1
  shift
  PATH="$venv/bin:$PATH" "$venv/bin/python" -m grpc_tools.protoc -I"$protos" -I"$googleapis" "$@"
}
