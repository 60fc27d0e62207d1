"""An ordinary MCP client: connects to the URL, lists the tools, makes the calls that stdin names.

stdin:  [{"tool": "name", "arguments": {}}, ...]
stdout: {"protocol": "...", "tools": [...], "answers": [{"text": "...", "isError": false} or {"code": ..., "message": "..."}]}
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client


async def main():
    headers = {"Authorization": "Bearer " + os.environ["AWAKEN_TOKEN"]}
    calls = json.load(sys.stdin)
    # the machine's proxy is no way to a gateway in a cluster
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
        async with Client(streamable_http_client(sys.argv[1], http_client=http)) as client:
            listed = await client.list_tools()
            answers = []
            for call in calls:
                try:
                    result = await client.call_tool(call["tool"], call["arguments"])
                    text = "".join(c.text for c in result.content if c.type == "text")
                    answers.append({"text": text, "isError": bool(result.is_error)})
                except MCPError as error:
                    answers.append({"code": error.error.code, "message": error.error.message, "data": error.error.data})
            tools = [tool.name for tool in listed.tools]
            print(json.dumps({"protocol": client.protocol_version, "tools": tools, "answers": answers}))


asyncio.run(main())
