"""Follows EndpointSlices through the `kubernetes` client: a list, then a watch from its version on, and again.

Needs `pip install 'trimtab[kubernetes]'`; who follows none need not import this module. The client blocks, so it has a
thread of its own, which tells the event loop. A watch that ends is taken up where it ended; where the server no longer
knows that version (410), or the connection broke, everything is listed again. Needs the verbs list and watch on
endpointslices.discovery.k8s.io.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import kubernetes
import urllib3

from .endpoint_slices import EndpointSlices
from .source import Tell

log = logging.getLogger("trimtab.membership")

WATCH_S = 60
"""The server ends a watch after as long."""
BETWEEN_S = 0.5
AGAIN_S = 2.0
REQUEST_TIMEOUT_S = (5.0, WATCH_S + 15.0)
"""(to connect, between two bytes)."""
IN_CLUSTER_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def api(kubeconfig: str = "") -> kubernetes.client.DiscoveryV1Api:
    """The API by a kubeconfig file, or by the pod's service account. Raises ConfigException."""
    configuration = kubernetes.client.Configuration()
    if kubeconfig:
        kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig, client_configuration=configuration
        )
    else:
        kubernetes.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return kubernetes.client.DiscoveryV1Api(kubernetes.client.ApiClient(configuration))


class KubernetesSource:
    """The slices of one selector in one namespace."""

    name = "kubernetes"

    def __init__(
        self, api: kubernetes.client.DiscoveryV1Api, namespace: str, selector: str, slices: EndpointSlices
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._selector = selector
        self._slices = slices
        self._stopped = threading.Event()
        self._watch: kubernetes.watch.Watch | None = None

    async def run(self, tell: Tell) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()

        def in_loop(call: Callable[..., None], *arguments: object) -> None:
            if not self._stopped.is_set():
                loop.call_soon_threadsafe(call, *arguments)

        self._stopped.clear()
        threading.Thread(target=self._follow, args=(tell, in_loop), name="kubernetes", daemon=True).start()
        try:
            await asyncio.Event().wait()
        finally:
            self._stopped.set()
            if self._watch is not None:
                self._watch.stop()  # type: ignore[no-untyped-call]

    def _follow(self, tell: Tell, in_loop: Callable[..., None]) -> None:
        while not self._stopped.is_set():
            try:
                version = self._list()
                while not self._stopped.is_set():
                    self._tell(tell, in_loop)
                    version = self._watch_from(version, lambda: self._tell(tell, in_loop))
                    self._stopped.wait(BETWEEN_S)
            except kubernetes.client.ApiException as error:
                if error.status != 410:
                    in_loop(tell.failed, f"the API server answers {error.status} ({error.reason})")
            except (urllib3.exceptions.HTTPError, OSError) as error:
                in_loop(tell.failed, f"the API server cannot be reached ({type(error).__name__})")
            except Exception as error:
                log.exception("EndpointSlices are listed anew")
                in_loop(tell.failed, f"a mistake inside the router ({type(error).__name__})")
            self._stopped.wait(AGAIN_S)

    def _list(self) -> str:
        answer: Any = self._api.list_namespaced_endpoint_slice(
            self._namespace,
            label_selector=self._selector,
            _request_timeout=REQUEST_TIMEOUT_S,
            _preload_content=False,
        )
        document = json.loads(answer.data)
        self._slices.replace(document.get("items") or ())
        return str((document.get("metadata") or {}).get("resourceVersion", ""))

    def _watch_from(self, version: str, tell: Callable[[], None]) -> str:
        """Until the server ends the watch; the version to go on from."""
        watch = self._watch = kubernetes.watch.Watch()  # type: ignore[no-untyped-call]
        for event in watch.stream(  # type: ignore[no-untyped-call]
            self._api.list_namespaced_endpoint_slice,
            self._namespace,
            label_selector=self._selector,
            resource_version=version,
            timeout_seconds=WATCH_S,
            allow_watch_bookmarks=True,
            _request_timeout=REQUEST_TIMEOUT_S,
        ):
            item: dict[str, Any] = event["raw_object"]
            if event["type"] != "BOOKMARK":
                self._slices.event(event["type"], item)
                tell()
        return str(watch.resource_version or version)

    def _tell(self, tell: Tell, in_loop: Callable[..., None]) -> None:
        members, problem = self._slices.members(), self._slices.problem
        if members or not problem:
            in_loop(tell.nodes, members)
        if problem:
            in_loop(tell.failed, problem)
