# Translating or classifying with a trained run on a small arm64 machine (Graviton, Raspberry Pi 5); torch without CUDA.
# UNTESTED: written where there is neither Docker nor arm64.
#
#   docker build --platform linux/arm64 -f docker/arm64.Dockerfile -t konvoi-arm64 .
#   docker run -i --rm -v "$PWD/runs:/runs:ro" konvoi-arm64 translate /runs/demo < sentences.txt
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN PIP_CONSTRAINT=constraints.txt pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu .
RUN useradd --create-home konvoi
USER konvoi
ENTRYPOINT ["konvoi"]
