# kvc on AMD's own image: torch for ROCm, hipcc and the runtime are there; kvc takes what it finds.
#   docker build -t kvc .
#   docker run --rm --device /dev/kfd --device /dev/dri -v "$PWD:/work" kvc translate model.py
ARG BASE=rocm/pytorch:latest
FROM ${BASE}

COPY . /opt/kvc
# torch and triton stay those of the image, which are built for this ROCm.
RUN python3 -m pip install --no-cache-dir --no-deps /opt/kvc \
 && python3 -m pip install --no-cache-dir "numpy>=2.0" "ziglang>=0.17,<0.18" "libclang>=18.1,<19" "lark>=1.2" \
    "typer>=0.15" "rich>=13" "jinja2>=3.1" "optuna>=4.2" "onnx>=1.18" \
 && kvc --version

WORKDIR /work
ENTRYPOINT ["kvc"]
CMD ["doctor"]
