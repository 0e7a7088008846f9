# The one image of every part of a lab; docker-compose.yml says which command each part runs.
#   docker build .                          torch for the CPU, from PyTorch's own index
#   docker build --build-arg TORCH=cuda .   torch with CUDA 13, several GB, for drivers from 580 on
ARG TORCH=cpu

FROM python:3.11-slim-bookworm AS python
ENV PATH=/opt/venv/bin:$PATH

# A version such as 2.13.0+cpu sorts above the plain one, so pip takes it where it is offered.
FROM python AS torch-cpu
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

FROM python AS torch-cuda

# hadolint ignore=DL3006
FROM torch-${TORCH} AS build
ENV PIP_CONSTRAINT="/build/constraints.txt /build/constraints-cuda.txt" \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/venv
COPY pyproject.toml constraints.txt constraints-cuda.txt README.md ./
# The dependencies are a layer of their own, which a change of the code leaves as it is.
RUN python -c "import tomllib; \
print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
    > requirements.txt && pip install --requirement requirements.txt
COPY mptcore mptcore
COPY CHANGELOG.md CONTRIBUTING.md ./
COPY docs docs
COPY service service
COPY worker worker
COPY mptlab mptlab
COPY migrations migrations
RUN pip install --no-deps .

FROM python
# A named volume takes over the owner of the directory that it is first mounted on.
RUN useradd --uid 10001 --user-group --create-home mptlab \
    && install --directory --owner mptlab --group mptlab --mode 700 /var/lib/mptlab
COPY --from=build /opt/venv /opt/venv
ENV MPT_STORE=/var/lib/mptlab PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/mptlab
EXPOSE 8765
CMD ["mpt", "--help"]
