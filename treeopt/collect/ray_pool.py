"""The same job on a Ray cluster: a pool of actors that hold the models, each part a task of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from treeopt.acceptance.profile import Conditions
from treeopt.collect.job import Advance, CollectJob, record_part
from treeopt.collect.parts import Collection, JobPart, documents_in
from treeopt.collect.record import EncodedPrompt, Recorder
from treeopt.collect.settings import CollectSettings
from treeopt.errors import InputError
from treeopt.extras import require

# A cluster of our own, for one call. Ray listens on every interface, and replaces a loopback address that it is given,
# unless clusters are off as they are by default on macOS and Windows. It reads these when it is imported.
_LOCAL_ENVIRONMENT: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_LOCAL: Final = {"include_dashboard": False, "object_store_memory": 256 << 20}


class PartWorker:
    """An actor: loads the models once, then turns parts into NPZ files, which the driver writes."""

    def __init__(self, settings: dict[str, Any], conditions: dict[str, Any]) -> None:
        self._recorder = Recorder.load(CollectSettings(**settings))
        self._conditions = Conditions(**conditions)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A part as JSON to its index and its file."""
        part = _from_json(row["part"])
        data = record_part(self._recorder, part, self._conditions, advance=lambda documents: None)
        return {"index": part.index, "documents": len(part.documents), "data": data}


def run_on_ray(job: CollectJob, collection: Collection, *, address: str, workers: int | None, advance: Advance) -> None:
    """Collect the missing parts on a cluster, in whatever order they are done.

    A worker that is lost is started again and its part given to another; a driver that is killed leaves the parts that
    had arrived. The files are those of one process, to the byte where the machines compute alike.

    Args:
        address: of the cluster, `auto`, or `local` for one on this machine that ends with this call.
        workers: actors; None for one per GPU, or per CPU where there is none.

    Raises:
        InputError: Ray is not installed or cannot be reached, a worker fails by itself, or a part cannot be written.
    """
    missing = collection.missing()
    advance(job.documents - documents_in(missing))
    if not missing:
        return
    by_index = {part.index: part for part in missing}
    with _cluster(address) as ray:
        try:
            for row in _results(ray, job, missing, workers):
                collection.write(by_index[row["index"]], row["data"])
                advance(row["documents"])
        except ray.exceptions.RayError as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise InputError(f"the workers failed: {reason}", hint="run without --ray to see it happen here") from error


def _results(ray: Any, job: CollectJob, parts: Sequence[JobPart], workers: int | None) -> Iterator[dict[str, Any]]:
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if job.settings.device != "cpu" else 0
    size = min(workers or gpus or int(resources["CPU"]), len(parts))
    # One block per part: a part is then one task, which arrives when it is done and alone is lost with a worker.
    rows = ray.data.from_items([{"part": _to_json(part)} for part in parts], override_num_blocks=len(parts))
    done = rows.map(
        PartWorker,
        fn_constructor_args=(asdict(job.settings), asdict(job.conditions)),
        compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
        num_cpus=1,
        num_gpus=1 if gpus else None,
    )
    yield from done.iter_rows()


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """A connection to the cluster; one that was there before is used and left."""
    if address == "local":
        for name, value in _LOCAL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    ray = require("ray", extra="ray")
    require("ray.data", extra="ray")
    if ray.is_initialized():
        yield ray
        return
    local = _LOCAL if address == "local" else {}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except (ConnectionError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"no Ray cluster at {address}: {reason}",
            hint="give --ray HOST:PORT, auto or local; a cluster with token authentication wants its token here too",
        ) from error
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Fail at once where nobody listens: Ray itself would go on trying for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _to_json(part: JobPart) -> str:
    documents = [[document.doc_id, document.tokens.tolist()] for document in part.documents]
    return json.dumps({"index": part.index, "documents": documents})


def _from_json(text: str) -> JobPart:
    value = json.loads(text)
    documents = [EncodedPrompt(doc_id=d, tokens=np.array(tokens, dtype=np.int64)) for d, tokens in value["documents"]]
    return JobPart(index=value["index"], documents=tuple(documents))
