"""An ordinary MCP client: connects to the URL, lists the tools, takes the steps that stdin names, one after the other.

stdin:  [STEP, ...], each one of
        {"tool": "name", "arguments": {}}      calls a tool
        {"listed": "name", "is": true}         waits until the list has the tool (or has not), by list_changed alone
stdout: {"protocol": "...", "server": "...", "tools": [...], "changes": 1, "answers": [ANSWER, ...]}, an answer being one of
        {"text": "...", "isError": false, "structured": {}, "progress": [[1.5, 60.0, "..."], ...]}
        {"code": ..., "message": "...", "data": {}}
        {"tools": [...]}
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

LIMIT_S = 60


class Changes:
    """Counts the notices of a changed list."""

    def __init__(self):
        self.count, self.came = 0, asyncio.Event()

    async def __call__(self, message):
        if getattr(getattr(message, "root", message), "method", None) == "notifications/tools/list_changed":
            self.count += 1
            self.came.set()


async def names(client):
    return [tool.name for tool in (await client.list_tools()).tools]


async def call(client, step):
    progress = []

    async def note(value, total, message):
        progress.append([value, total, message])

    try:
        result = await client.call_tool(step["tool"], step["arguments"], progress_callback=note)
    except MCPError as error:
        return {"code": error.error.code, "message": error.error.message, "data": error.error.data}
    text = "".join(c.text for c in result.content if c.type == "text")
    structured = result.structured_content
    return {"text": text, "isError": bool(result.is_error), "structured": structured, "progress": progress}


async def listed(client, step, changes):
    while True:
        changes.came.clear()
        tools = await names(client)
        if (step["listed"] in tools) == step["is"]:
            return {"tools": tools}
        await asyncio.wait_for(changes.came.wait(), LIMIT_S)


async def main():
    headers = {"Authorization": "Bearer " + os.environ["AWAKEN_TOKEN"]}
    steps = json.load(sys.stdin)
    changes = Changes()
    # the machine's proxy is no way to a gateway in a cluster
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=120) as http:
        async with Client(streamable_http_client(sys.argv[1], http_client=http), message_handler=changes) as client:
            tools = await names(client)
            answers = [await (call(client, s) if "tool" in s else listed(client, s, changes)) for s in steps]
            server = client.server_info.name if client.server_info else None
            report = {"protocol": client.protocol_version, "server": server, "tools": tools}
            print(json.dumps(report | {"changes": changes.count, "answers": answers}))


asyncio.run(main())
