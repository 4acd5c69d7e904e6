"""`python -m penstock.buffer.routes > docs/buffer-openapi.json`: the document that describes the buffer's API."""

from __future__ import annotations

import json
import sys

from penstock.buffer.routes import api_document

sys.stdout.write(json.dumps(api_document(), indent=1, ensure_ascii=False) + "\n")
