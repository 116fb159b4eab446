# A node with GPUs for `konvoi train --cluster`: sshd and an environment with Konvoi, CUDA coming with torch's wheel.
# UNTESTED: written where there is neither Docker nor a GPU.
#
#   docker build -f docker/gpu.Dockerfile -t konvoi-gpu .
#   docker run --gpus all --network host --ipc host -v ~/.ssh/authorized_keys:/root/.ssh/authorized_keys:ro konvoi-gpu
#
# In cluster.toml: environment = "/opt/konvoi", python = "/opt/konvoi/bin/python". With --network host its sshd needs a
# port that the node's own leaves free: add `-p 2222` to the end of docker run and Port 2222 to ~/.ssh/config.
FROM python:3.12-slim
# iproute2 shows the network to people. The host keys that Debian made would be the same in every container.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-server iproute2 \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* && mkdir -p /run/sshd
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN python -m venv /opt/konvoi && PIP_CONSTRAINT=constraints.txt /opt/konvoi/bin/pip install --no-cache-dir .
ENTRYPOINT ["sh", "-c", "ssh-keygen -A && exec /usr/sbin/sshd -D -e -o PasswordAuthentication=no \"$@\"", "sshd"]
