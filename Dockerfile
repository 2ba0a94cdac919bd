# Runs `skipdec serve` on a bundle mounted read-only at /srv/bundle:
#
#     docker build -t skipdec:0.1.0 .
#     docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/restaurants-int8:/srv/bundle:ro" skipdec:0.1.0
#
# Arguments after the image's name replace CMD: /srv/bundle --schedule 2x --allow-schedule 4x.
# The image has neither torch nor a compiler. scripts/environments/rehearse_container.py runs these steps without
# Docker.

FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/source
COPY . .
# The kernels contain code for all processors of this architecture. An installation succeeds without
# them, so the last command checks that they are there. The server does not need libskipdec.
RUN python -m venv /opt/skipdec \
    && SKIPDEC_LIBSKIPDEC=0 /opt/skipdec/bin/pip install --no-cache-dir --constraint scripts/constraints.txt ".[serve]" \
    && /opt/skipdec/bin/python -c "from skipdec.engines.kernels.library import require_library as r; r('image')"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/skipdec /opt/skipdec
ENV PATH=/opt/skipdec/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME ["/srv/bundle"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["skipdec", "serve", "--host", "0.0.0.0"]
CMD ["/srv/bundle"]
