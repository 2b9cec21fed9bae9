//! The loop of an accepted HTTP/1 connection: read a head, ask the handler, write the response, see
//! to the rest of the request, again.
//!
//! While it waits for a request it is small: everything that belongs to one exchange is in a future
//! of its own, which exists as long as the exchange does.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version};
use mesh_runtime::drain::Watch;
use tokio::time::timeout;

use self::plan::{Facts, Plan};
use super::connection::Rest;
use super::framing::Asked;
use super::head::{self, Reason};
use super::limits::{LINGER, MAX_LINGER_BYTES};
use super::{Connection, Encoder, Error, Framing, Outgoing, Refused, encode};
use crate::config::HttpLimits;
use crate::http::admitted::Admission;
use crate::http::idle::idle;
use crate::http::interim::Interim;
use crate::http::patience::Patience;
use crate::http::respond::{self, CloseConnection};
use crate::http::upgrade;
use crate::http::{Body, Handle, Request, Response, uri};
use crate::transport::Io;

mod plan;

/// What the connection has become.
#[derive(Debug)]
pub(in crate::http) enum Ended {
    Closed,
    /// The client's and the server's connection, to be joined for as long as they may.
    Tunnel(Box<(Io, Io, Option<Admission>)>),
}

/// What follows an exchange.
enum After {
    Next,
    Close,
    /// Close, but the client may still be sending: what it sends is read for a while, or it would
    /// never see the response.
    Linger,
    /// The server's connection.
    Tunnel(Box<Io>, Option<Admission>),
}

/// What holds for all requests of a connection.
pub(in crate::http) struct Terms<'a, H> {
    pub(in crate::http) drain: &'a Watch,
    pub(in crate::http) handler: &'a H,
    pub(in crate::http) limits: &'a HttpLimits,
}

/// Serves `io` until it ends, or has been idle for too long. While the proxy drains, a request that
/// has begun is answered, and no other.
pub(in crate::http) async fn serve<H: Handle>(
    io: Io,
    terms: &Terms<'_, H>,
) -> Result<Ended, Error> {
    let connection = Connection::new(io, terms.limits.http1);
    let exchanges = Cell::new(0_u32);
    let mut draining = pin!(terms.drain.draining());
    let mut idle = pin!(idle(terms.limits.idle, || exchanges.get()));
    loop {
        let is_over = |cx: &mut Context<'_>| {
            draining.as_mut().poll(cx).is_ready() || idle.as_mut().poll(cx).is_ready()
        };
        if !begun(&connection, is_over).await? {
            break;
        }
        exchanges.set(exchanges.get().wrapping_add(1));
        let exchange = Box::pin(exchange(&connection, terms));
        match exchange.await {
            Ok(After::Next) => {}
            Ok(After::Close) => break,
            Ok(After::Linger) => {
                Box::pin(linger(&connection)).await;
                return Ok(Ended::Closed);
            }
            Ok(After::Tunnel(server, admission)) => {
                let client = connection.into_io().ok_or(Error::Busy)?;
                return Ok(Ended::Tunnel(Box::new((client, *server, admission))));
            }
            Err(error) => {
                Box::pin(refuse(&connection, &error)).await;
                connection.cut_off();
                return Err(error);
            }
        }
    }
    poll_fn(|cx| connection.poll_shutdown(cx)).await?;
    Ok(Ended::Closed)
}

/// Waits for a request. False when none will come: the client has closed, or has been idle for too
/// long, or the proxy drains.
async fn begun(
    connection: &Connection,
    mut is_over: impl FnMut(&mut Context<'_>) -> bool,
) -> Result<bool, Error> {
    poll_fn(|cx| match connection.poll_begun(cx) {
        Poll::Pending if is_over(cx) => Poll::Ready(Ok(false)),
        begun => begun,
    })
    .await
}

/// One request and its response. An error is answered if it has an answer, and ends the connection.
async fn exchange<H: Handle>(
    connection: &Rc<Connection>,
    terms: &Terms<'_, H>,
) -> Result<After, Error> {
    let (mut request, facts) = read_request(connection, terms.limits).await?;
    let wanted = upgrade::accept(&mut request).map_err(|_bad| Refused::Target)?;
    uri::unify_authority(&mut request)?;
    uri::mark_form(&mut request);
    let mut patience = Patience::new(terms.limits.body_time);
    let handled = handle(connection, terms.handler, &mut request, &mut patience).await?;
    drop(request);
    let Some(mut response) = handled else {
        return Ok(After::Close);
    };
    if wanted.is_some_and(|wanted| wanted.is_agreed(response.status())) {
        return switch(connection, response).await;
    }
    if response.status().is_informational() {
        // Nobody has asked for it, and nothing of the connection could be understood after it.
        response = respond::status(facts.version, StatusCode::BAD_GATEWAY);
        response.extensions_mut().insert(CloseConnection);
    }
    let drained = terms.limits.drained_body;
    let is_leaving = terms.drain.is_draining() || cannot_finish(connection, drained);
    let plan = Plan::of(facts, &response, is_leaving);
    write_response(connection, plan, response, &mut patience).await?;
    let is_over = match connection.rest() {
        Rest::Over => true,
        _ => Box::pin(finish_request(connection, plan.keeps_alive, drained)).await,
    };
    Ok(match is_over {
        true if plan.keeps_alive => After::Next,
        true if !connection.has_surplus() => After::Close,
        _ => After::Linger,
    })
}

/// Reads the head of a request whose first byte is there.
async fn read_request(
    connection: &Rc<Connection>,
    limits: &HttpLimits,
) -> Result<(Request, Facts), Error> {
    let head = match connection.try_head()? {
        Some(head) => head,
        None => Box::pin(read_slow_head(connection, limits.head_time)).await?,
    };
    let head = head::request(&head, &limits.http1)?;
    let facts = Facts {
        asked: Asked::by(&head.method),
        version: head.version,
        keeps_alive: head.keeps_alive,
    };
    let body = match connection.begin_body(head.body, head.expects_continue) {
        Some(incoming) => Body::http1(incoming),
        None => Body::empty(),
    };
    let body = match head.version {
        // There are no interim responses in HTTP/1.0.
        Version::HTTP_10 => body,
        _ => body.with_interim(Interim::Http1(super::Interim::of(connection))),
    };
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    *request.version_mut() = head.version;
    *request.headers_mut() = head.headers;
    Ok((request, facts))
}

/// A head that has not come in one piece.
async fn read_slow_head(connection: &Connection, limit: Duration) -> Result<Bytes, Error> {
    let head = poll_fn(|cx| connection.poll_head(cx));
    match timeout(limit, head).await {
        Ok(head) => head?.ok_or(Error::Incomplete),
        Err(_elapsed) => Err(Error::HeadTimeout(limit)),
    }
}

/// Asks the handler. `None` when it does not want to answer. Gives up when the client has, and when
/// the request turns out to be no HTTP.
async fn handle<H: Handle>(
    connection: &Rc<Connection>,
    handler: &H,
    request: &mut Request,
    patience: &mut Patience,
) -> Result<Option<Response>, Error> {
    let mut handling = pin!(handler.handle(request));
    let response = poll_fn(|cx| {
        if let Poll::Ready(answer) = handling.as_mut().poll(cx) {
            return Poll::Ready(Ok(answer.ok()));
        }
        // Interim responses that were passed on, and requests for the body.
        if let Poll::Ready(Err(error)) = connection.poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        poll_left(connection, patience, false, cx).map(Err)
    })
    .await?;
    // Whatever the handler has made of it.
    match connection.refused() {
        Some(refused) => Err(refused.into()),
        None => Ok(response),
    }
}

/// Ready when the client has gone, or does not send what it has announced.
fn poll_left(
    connection: &Rc<Connection>,
    patience: &mut Patience,
    is_answered: bool,
    cx: &mut Context<'_>,
) -> Poll<Error> {
    match patience.poll(cx, connection) {
        Poll::Ready(limit) => Poll::Ready(Error::BodyTimeout { limit, is_answered }),
        Poll::Pending => connection.poll_vanished(cx),
    }
}

/// Whether it is known already that the rest of the request will not be read: it is too much, or
/// the client will never send it.
fn cannot_finish(connection: &Connection, drained: u64) -> bool {
    connection.is_undecided()
        || match connection.rest() {
            Rest::Over | Rest::Held => false,
            Rest::Unwanted(left) => left.is_some_and(|left| left > drained),
            Rest::Lost => true,
        }
}

async fn write_response(
    connection: &Rc<Connection>,
    plan: Plan,
    response: Response,
    patience: &mut Patience,
) -> Result<(), Error> {
    let (head, mut body) = response.into_parts();
    let admission = body.take_admission();
    connection.write(|output| {
        encode::response(
            output.flat(),
            (plan.version, head.status, head.extensions.get::<Reason>()),
            &head.headers,
            plan.framing,
            plan.connection(),
        );
    });
    let body = if plan.has_body { body } else { Body::empty() };
    let mut outgoing = Outgoing::new(body, plan.encoder);
    let written = poll_fn(|cx| match outgoing.poll(connection, cx) {
        Poll::Ready(written) => Poll::Ready(written),
        Poll::Pending => match &admission {
            Some(admission) if admission.poll_revoked(cx).is_ready() => {
                Poll::Ready(Err(Error::Revoked))
            }
            _ => poll_left(connection, patience, true, cx).map(Err),
        },
    })
    .await;
    if written.is_err() && plan.encoder == Encoder::Close {
        // Closing would say that the body is complete.
        connection.reset();
    }
    written
}

/// Sees to what is left of the request's body. False when it has not come to its end.
async fn finish_request(connection: &Connection, keeps_alive: bool, mut left: u64) -> bool {
    // Somebody may still send it on. That ends when the other side has had enough, or the client.
    match poll_fn(|cx| connection.poll_rest(cx)).await {
        Rest::Over => return true,
        Rest::Unwanted(_) if keeps_alive => {}
        Rest::Unwanted(_) | Rest::Held | Rest::Lost => return false,
    }
    let discard = poll_fn(|cx| connection.poll_discard(cx, &mut left));
    timeout(LINGER, discard).await.unwrap_or(false)
}

/// Says that protocols are switched, and lets go of the server's connection.
async fn switch(connection: &Connection, mut response: Response) -> Result<After, Error> {
    if connection.rest() != Rest::Over {
        return Err(Error::Busy);
    }
    let admission = response.body_mut().take_admission();
    let tunnel = response.body_mut().take_tunnel();
    connection.write(|output| {
        let head = (
            Version::HTTP_11,
            response.status(),
            response.extensions().get(),
        );
        encode::response(output.flat(), head, response.headers(), Framing::None, None);
    });
    poll_fn(|cx| connection.poll_flush(cx)).await?;
    Ok(tunnel.map_or(After::Close, |server| After::Tunnel(server, admission)))
}

/// Answers what is no request.
async fn refuse(connection: &Connection, error: &Error) {
    let Some(status) = error.answer() else { return };
    let response = respond::status(Version::HTTP_11, status);
    connection.write(|output| {
        encode::response(
            output.flat(),
            (Version::HTTP_11, status, None),
            response.headers(),
            Framing::AsGiven,
            Some(HeaderValue::from_static("close")),
        );
    });
    linger(connection).await;
}

/// Closes the writing half, and reads for a while what the client still sends: a connection that is
/// closed with bytes unread is reset, and the client's kernel throws away the response (RFC 9112,
/// section 9.6).
async fn linger(connection: &Connection) {
    let mut left = MAX_LINGER_BYTES;
    let lingering = async {
        poll_fn(|cx| connection.poll_shutdown(cx)).await?;
        poll_fn(|cx| connection.poll_linger(cx, &mut left)).await;
        Ok::<_, Error>(())
    };
    // The client may be gone, or never stop.
    let _ended = timeout(LINGER, lingering).await;
}

#[cfg(test)]
mod tests {
    use mesh_runtime::drain;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::http::Reset;

    /// As large as the real ones.
    struct Large;

    impl Handle for Large {
        async fn handle(&self, _request: &mut Request) -> Result<Response, Reset> {
            let state = [0_u8; 4096];
            tokio::task::yield_now().await;
            std::hint::black_box(&state);
            Ok(Response::new(Body::empty()))
        }
    }

    /// What an idle connection costs, besides the socket: its task and what that points to.
    #[tokio::test]
    async fn idle_connections_are_small() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (_drain, watch) = drain::channel();
        let terms = Terms {
            drain: &watch,
            handler: &Large,
            limits: &HttpLimits::DEFAULT,
        };
        let task = size_of_val(&serve(Io::plain(tcp.unwrap()), &terms));
        let connection = size_of::<Connection>();
        assert!(task <= 512, "{task}");
        assert!(connection <= 512, "{connection}");
    }
}
