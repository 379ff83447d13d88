#!/usr/bin/env python3
"""An example of a provider: runs the containers of larder's pods as processes of this machine.

It asks a running agent for its pods over the socket in the agent's root directory, starts the command of each container
with the variables that larder delivers, and restarts it when those or the pod's volumes change. A volume NAME of the
pod is the directory in the variable VOLUME_NAME. Init containers run first, each as soon as its own variables and the
pod's volumes are there. A deleted pod is stopped. A container without `command` needs its image, and is left out. So
are restarts after a crash, probes and logs.

    provider.py ROOT_DIR
"""

import hashlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys


class Agent(http.client.HTTPConnection):
    """A connection to the socket of an agent."""

    def __init__(self, root_dir):
        super().__init__("localhost")
        self.path = os.path.join(root_dir, "agent.sock")

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)
        # What the agent says is executed, so a socket that another user has made is as bad as that user's command.
        peer = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, user, _ = struct.unpack("3i", peer)
        if user not in (0, os.getuid()):
            self.sock.close()
            sys.exit(f"cannot trust the agent on {self.path}: it runs as user {user}")

    def ask(self, path):
        self.request("GET", path)
        answer = self.getresponse()
        return answer if answer.status == 200 else (answer.read(), None)[1]


class Provider:
    """The running processes, by pod and container."""

    def __init__(self, root_dir):
        self.root_dir = root_dir
        self.processes = {}
        self.initialized = set()
        self.skipped = set()

    def follow(self):
        """Brings all pods up to date, then follows the changes; starts over when the agent no longer has them."""
        while True:
            listed = json.load(Agent(self.root_dir).ask("/v1/pods"))
            names = {(pod["namespace"], pod["name"]) for pod in listed["pods"]}
            for pod in names | {key[:2] for key in self.processes}:
                self.sync(*pod)
            changes = Agent(self.root_dir).ask(f"/v1/changes?since={listed['sequence']}")
            for line in changes or ():
                change = json.loads(line)
                self.sync(change["namespace"], change["name"])

    def sync(self, namespace, name):
        """Starts, restarts or stops the processes of one pod."""
        answer = Agent(self.root_dir).ask(f"/v1/pods/{namespace}/{name}")
        served = answer and json.load(answer)
        status = served["status"] if served else {"phase": "Removing"}
        if status["phase"] == "Removing" or "deletionTimestamp" in status:
            for key in [key for key in self.processes if key[:2] == (namespace, name)]:
                self.stop(key)
            self.initialized.discard((namespace, name))
            return
        pod = served["pod"]
        if not self.initialize((namespace, name), pod, status):
            return
        for container in pod["spec"]["containers"]:
            # What is not delivered does not start; what runs goes on with the last good content.
            if self.is_delivered(container, status):
                self.start((namespace, name, container["name"]), container, status)

    def initialize(self, pod_key, pod, status):
        """Runs the init containers one after the other, once; returns whether all have succeeded."""
        if pod_key in self.initialized:
            return True
        for container in pod["spec"].get("initContainers", []):
            if not self.is_delivered(container, status):
                return False  # The change that delivers it calls again.
            command, variables, _ = self.prepared(container, status)
            # A provider for more than an example waits elsewhere.
            if command and subprocess.run(command, env=variables, check=False).returncode != 0:
                print("failed", *pod_key, container["name"], flush=True)
                return False
        self.initialized.add(pod_key)
        return True

    @staticmethod
    def is_delivered(container, status):
        """Whether the variables of a container and the volumes that it mounts are there."""
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        parts = [c for c in status["containers"] if c["name"] == container["name"]]
        parts += [volume for volume in status["volumes"] if volume["name"] in mounted]
        return bool(parts) and all(part["phase"] == "Delivered" for part in parts)

    @staticmethod
    def prepared(container, status):
        """The command of a container, its variables, and a digest of what it sees."""
        [environment] = [c["path"] for c in status["containers"] if c["name"] == container["name"]]
        with open(environment, encoding="utf-8") as file:
            variables = json.load(file)
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        volumes = [volume for volume in status["volumes"] if volume["name"] in mounted]
        content = [variables, [[v["name"], os.path.realpath(os.path.join(v["path"], "..data"))] for v in volumes]]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
        variables.setdefault("PATH", os.environ.get("PATH", os.defpath))
        for volume in volumes:
            variables["VOLUME_" + volume["name"].replace("-", "_")] = volume["path"]
        # `args` alone are arguments of the image's entry point.
        command = container["command"] + container.get("args", []) if container.get("command") else None
        return command, variables, digest

    def start(self, key, container, status):
        """Starts a container unless it runs with this very content."""
        command, variables, digest = self.prepared(container, status)
        if key in self.processes:
            if self.processes[key][1] == digest:
                return
            self.stop(key)
        if command is None:
            if key not in self.skipped:
                print("skip", *key, "(no command: it is in the image)", flush=True)
                self.skipped.add(key)
            return
        print("start", *key, flush=True)
        self.processes[key] = (subprocess.Popen(command, env=variables), digest)

    def stop(self, key):
        """Ends a process: TERM, and KILL after 10 s."""
        print("stop", *key, flush=True)
        process, _ = self.processes.pop(key)
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    provider = Provider(sys.argv[1])
    try:
        provider.follow()
    finally:
        for key in list(provider.processes):
            provider.stop(key)


if __name__ == "__main__":
    main()
