# The program with NVIDIA support, from the wheels of peft-tune-cuda; scripts/package/image.sh --cuda builds this.
# The driver comes from the machine, by NVIDIA's container toolkit:
#
#     docker run --rm --gpus all -v "$PWD:/work" -u "$(id -u):$(id -g)" peft-tune:cuda search space.yaml
ARG BASE=docker.io/library/python:3.13-slim-bookworm
FROM ${BASE}
LABEL org.opencontainers.image.title="peft-tune" \
      org.opencontainers.image.description="Finds the LoRA/QLoRA fine-tuning settings worth using, on NVIDIA GPUs" \
      org.opencontainers.image.licenses="MIT"
ARG WHEEL
COPY ${WHEEL} /tmp/
# Brings cuBLAS, cuRAND and NVRTC as NVIDIA's wheels.
RUN python3 -m venv /opt/peft-tune \
 && /opt/peft-tune/bin/pip install --no-cache-dir /tmp/*.whl \
 && rm /tmp/*.whl \
 && ln -s /opt/peft-tune/bin/peft-tune /usr/local/bin/peft-tune \
 && mkdir -m 1777 /cache /work
ENV XDG_CACHE_HOME=/cache NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["peft-tune"]
