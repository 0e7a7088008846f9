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

# Of pyproject.toml the dependencies alone: its other changes leave the next stage as it is.
FROM python AS requirements
WORKDIR /build
COPY pyproject.toml ./
RUN python -c "import tomllib; \
print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
    > requirements.txt

# The dependencies are a layer of their own, 1.8 GB, which a change of the code leaves as it is.
# hadolint ignore=DL3006
FROM torch-${TORCH} AS dependencies
ENV PIP_CONSTRAINT="/build/constraints.txt /build/constraints-cuda.txt" \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/venv
COPY constraints.txt constraints-cuda.txt ./
COPY --from=requirements /build/requirements.txt ./
RUN pip install --requirement requirements.txt

FROM dependencies AS build
COPY pyproject.toml README.md CHANGELOG.md CONTRIBUTING.md ./
COPY mptcore mptcore
COPY docs docs
COPY service service
COPY worker worker
COPY mptlab mptlab
COPY mptlab_contract mptlab_contract
COPY migrations migrations
RUN pip install --no-deps --prefix /opt/mptlab .

FROM python
# A named volume takes over the owner of the directory that it is first mounted on.
RUN useradd --uid 10001 --user-group --create-home mptlab \
    && install --directory --owner mptlab --group mptlab --mode 700 /var/lib/mptlab
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=build /opt/mptlab /opt/venv
RUN python -m mptcore --compile
ENV MPT_STORE=/var/lib/mptlab PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/mptlab
EXPOSE 8765
CMD ["mpt", "--help"]
