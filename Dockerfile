# The package with its example apps. An image of your own goes on top: see
# docs/how-to/deploy.md. The same commit gives the same wheel, the same dependencies and the same bytecode.
FROM python:3.13.14-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build
ARG SOURCE_DATE_EPOCH=1767225600
WORKDIR /build
COPY k8s/image/build.txt k8s/image/runtime.txt ./
RUN python -m venv /opt/scheduler \
    && /opt/scheduler/bin/pip install --require-hashes --no-deps --no-compile -r runtime.txt \
    && python -m venv --without-pip tools \
    && /opt/scheduler/bin/pip --python tools/bin/python install --require-hashes --no-deps -r build.txt
COPY LICENSE README.md pyproject.toml ./
COPY scheduler scheduler
RUN tools/bin/hatchling build --target wheel --directory dist \
    && /opt/scheduler/bin/pip install --no-deps --no-compile dist/*.whl \
    && /opt/scheduler/bin/pip check \
    && /opt/scheduler/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/scheduler

FROM python:3.13.14-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6
COPY --from=build /opt/scheduler /opt/scheduler
WORKDIR /app
COPY examples examples
ENV PATH=/opt/scheduler/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SCHEDULER_APP=examples/reminders.py:app
USER 10001:10001
ENTRYPOINT ["scheduler"]
CMD ["run"]
