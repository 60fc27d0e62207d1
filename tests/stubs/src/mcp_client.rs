//! A small MCP client over Streamable HTTP: one connection, one MCP session, no retries. It shows
//! what came, status and headers included, so that tests can look at it.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// What a request got.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, whole.
    pub body: Bytes,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The messages in the body: one of JSON, or those of an event stream.
    ///
    /// # Errors
    /// When the body is neither.
    pub fn messages(&self) -> Result<Vec<Value>> {
        let text = std::str::from_utf8(&self.body)?;
        let kind =
            self.headers.get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Ok(vec![serde_json::from_str(text).with_context(|| {
                format!("HTTP {}: {}", self.status, text.chars().take(200).collect::<String>())
            })?]);
        }
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut all = vec![];
        for event in text.split("\n\n") {
            let lines = event.lines().filter_map(|l| l.strip_prefix("data:"));
            let data =
                lines.map(|l| l.strip_prefix(' ').unwrap_or(l)).collect::<Vec<_>>().join("\n");
            if !data.is_empty() {
                all.push(serde_json::from_str(&data)?);
            }
        }
        Ok(all)
    }

    /// The answer: the message with a result or an error.
    ///
    /// # Errors
    /// When there is none.
    pub fn answer(&self) -> Result<Value> {
        let answer = self.messages()?.into_iter().find(|m| m.get("method").is_none());
        answer.with_context(|| format!("HTTP {} without an answer", self.status))
    }
}

/// The client.
pub struct Client {
    authority: String,
    /// Path and query.
    pub path: String,
    /// Extra headers of every request.
    pub headers: Vec<(String, String)>,
    /// The MCP session, once there is one.
    pub session: Option<String>,
    sender: Option<SendRequest<Full<Bytes>>>,
    next_id: u64,
}

impl Client {
    /// A client of an `http://` URL that shows a bearer token.
    ///
    /// # Errors
    /// When the URL is no such one.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self> {
        let rest = url.strip_prefix("http://").context("an http:// URL")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let headers = token.map(|t| ("authorization".to_owned(), format!("Bearer {t}")));
        Ok(Self {
            authority: authority.to_owned(),
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
            headers: headers.into_iter().collect(),
            session: None,
            sender: None,
            next_id: 0,
        })
    }

    /// Another connection in the same MCP session; `number` keeps its request ids apart.
    pub fn join(&self, number: u64) -> Self {
        Self {
            authority: self.authority.clone(),
            path: self.path.clone(),
            headers: self.headers.clone(),
            session: self.session.clone(),
            sender: None,
            next_id: number << 32,
        }
    }

    async fn connection(&mut self) -> Result<&mut SendRequest<Full<Bytes>>> {
        if self.sender.as_ref().is_none_or(SendRequest::is_closed) {
            let address = match self.authority.rsplit_once(':') {
                Some(_) => self.authority.clone(),
                None => format!("{}:80", self.authority),
            };
            let stream = TcpStream::connect(&address).await.with_context(|| address.clone())?;
            stream.set_nodelay(true)?;
            let (sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            self.sender = Some(sender);
        }
        Ok(self.sender.as_mut().expect("set above"))
    }

    /// One HTTP request, as given.
    ///
    /// # Errors
    /// When there is no whole HTTP answer.
    pub async fn send(&mut self, method: Method, body: impl Into<Bytes>) -> Result<Reply> {
        let mut request = Request::builder()
            .method(method)
            .uri(&self.path)
            .header("host", &self.authority)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
            request = request.header("mcp-protocol-version", "2025-11-25");
        }
        let request = request.body(Full::new(body.into()))?;
        let sender = self.connection().await?;
        sender.ready().await?;
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Reply { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Initializes an MCP session; the result.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn initialize(&mut self) -> Result<Value> {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "awaken-test", "version": "1"}});
        self.session = None;
        let reply = self.request("initialize", &params).await?;
        let answer = reply.answer()?;
        let session = reply.headers.get("mcp-session-id").and_then(|v| v.to_str().ok());
        self.session = session.map(str::to_owned);
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let reply = self.send(Method::POST, initialized).await?;
        if reply.status != 202 {
            bail!("initialized got HTTP {}: {}", reply.status, reply.text());
        }
        Ok(answer["result"].clone())
    }

    /// Sends a request with an id of its own.
    ///
    /// # Errors
    /// When there is no whole HTTP answer.
    pub async fn request(&mut self, method: &str, params: &Value) -> Result<Reply> {
        self.next_id += 1;
        let message =
            json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params});
        self.send(Method::POST, message.to_string()).await
    }

    /// Calls a tool; the answer with its result or error.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value> {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments})).await?.answer()
    }

    /// The names of all tools, every page.
    ///
    /// # Errors
    /// When a page is refused.
    pub async fn tools(&mut self) -> Result<Vec<String>> {
        let (mut names, mut params) = (vec![], json!({}));
        loop {
            let answer = self.request("tools/list", &params).await?.answer()?;
            let tools = answer["result"]["tools"].as_array().with_context(|| answer.to_string())?;
            names.extend(tools.iter().filter_map(|t| t["name"].as_str().map(str::to_owned)));
            match &answer["result"]["nextCursor"] {
                Value::String(next) => params = json!({"cursor": next}),
                _ => return Ok(names),
            }
        }
    }
}

/// The text of the first content of a call's answer; empty for none.
pub fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}
