use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;

use super::*;
use crate::guard::Access;
use crate::holder::Holder;
use crate::route::Role;
use crate::tests::{closed, paused};

const ME: &str = "00000000000000ff";

fn leader_at(address: &str) -> Leader {
    Leader {
        http: format!("http://{address}"),
        address: address.parse().unwrap(),
        has_tls: false,
        host: None,
        asked_by: ME.to_owned(),
    }
}

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, value.parse().unwrap());
    }
    headers
}

fn head(request: Request<()>) -> Parts {
    request.into_parts().0
}

fn local(head: &Parts) -> Complete<'_> {
    Complete {
        head,
        body: b"",
        asker: Asker::Local,
    }
}

/// Run this with sockets.
fn live(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(test);
}

#[test]
fn a_leader_gets_the_fields_that_are_named_here_and_no_others() {
    let asked = headers(&[
        ("host", "queue.example"),
        ("accept", "text/html"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-length", "7"),
        ("transfer-encoding", "chunked"),
        ("connection", "bsd-passed-on, upgrade"),
        ("upgrade", "websocket"),
        ("te", "trailers"),
        ("cookie", "bsd-1=secret"),
        ("origin", "http://queue.example"),
        ("sec-fetch-site", "same-origin"),
        ("authorization", "Basic x"),
        ("bsd-passed-on", "0000000000000001"),
        ("bsd-leave", "x"),
        ("x-forwarded-for", "10.9.9.9"),
        ("expect", "100-continue"),
    ]);
    let word = "ab".repeat(32);
    let sent = fields(
        &asked,
        &leader_at("10.0.0.1:80"),
        (Some("word"), Some(&word)),
    )
    .unwrap();
    let wanted = headers(&[
        ("host", "10.0.0.1:80"),
        ("connection", "close"),
        ("bsd-passed-on", ME),
        ("accept", "text/html"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("authorization", "Bearer word"),
        ("bsd-leave", &word),
    ]);
    assert_eq!(sent, wanted);
    assert!(sent[AUTHORIZATION].is_sensitive());
    let sent = fields(&HeaderMap::new(), &leader_at("[::1]:80"), (None, None)).unwrap();
    let wanted = headers(&[
        ("host", "[::1]:80"),
        ("connection", "close"),
        ("bsd-passed-on", ME),
    ]);
    assert_eq!(sent, wanted);
}

#[test]
fn a_browser_gets_no_cookie_no_field_of_a_connection_and_no_way_elsewhere() {
    let answered = headers(&[
        ("content-type", "text/html"),
        ("content-length", "3"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("keep-alive", "5"),
        ("set-cookie", "bsd-1=x"),
        ("trailer", "x"),
        ("location", "/jobs/1?said=2"),
        ("retry-after", "1"),
    ]);
    let wanted = headers(&[
        ("content-type", "text/html"),
        ("retry-after", "1"),
        ("location", "/jobs/1?said=2"),
    ]);
    assert_eq!(shown(&answered), wanted);
    for place in ["//evil.example", "http://10.0.0.1/", "", "/\\evil.example"] {
        let shown = shown(&headers(&[("location", place)]));
        assert!(shown.is_empty(), "{place}");
    }
}

#[test]
fn a_query_is_asked_for_this_members_own_view_and_says_the_rest() {
    for (query, rest, is_own) in [
        (None, None, false),
        (Some(""), Some(""), false),
        (Some("q=a&view=member&sort=b"), Some("q=a&sort=b"), true),
        (Some("view=member"), Some(""), true),
        (Some("view=leader"), Some("view=leader"), false),
        (Some("q=view%3Dmember"), Some("q=view%3Dmember"), false),
    ] {
        assert_eq!(
            own_view(query),
            (rest.map(str::to_owned), is_own),
            "{query:?}"
        );
    }
    assert_eq!(
        with_own_view("/events?of=tasks"),
        "/events?of=tasks&view=member"
    );
    assert_eq!(with_own_view("/events"), "/events?view=member");
}

#[test]
fn who_has_passed_a_request_on_is_an_id_and_nothing_else() {
    let word = "ab".repeat(32);
    let of = |by: &str, leave: &str| {
        let fields = headers(&[("bsd-passed-on", by), ("bsd-leave", leave)]);
        passed_on_by(&fields).map(|(by, leave)| (by.to_owned(), leave.map(str::to_owned)))
    };
    assert_eq!(of(ME, &word), Some((ME.into(), Some(word.clone()))));
    assert_eq!(of(ME, "<b>"), Some((ME.into(), None)));
    assert_eq!(of("00000000000000f", &word), None);
    assert_eq!(of("<script>alert(1)", &word), None);
    assert_eq!(passed_on_by(&HeaderMap::new()), None);
}

/// The other end of a link, and the link.
async fn link() -> (DuplexStream, Link) {
    let (ours, theirs) = duplex(1 << 20);
    (theirs, converse(ours).await.unwrap())
}

fn look() -> Request<Full<Bytes>> {
    let request = Request::get("/tubes?q=a").header(HOST, "x");
    request.body(Full::default()).unwrap()
}

/// Read until the head of a request has come.
async fn head_of(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut said = Vec::new();
    while !said.ends_with(b"\r\n\r\n") {
        said.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(said).unwrap()
}

#[test]
fn a_leader_that_does_not_answer_is_waited_for_as_long_as_is_said() {
    paused(async {
        let (_theirs, link) = link().await;
        let begun = Instant::now();
        let failure = send(link, look(), || true).await.map(drop).unwrap_err();
        assert_eq!(failure, Failure::after("it took more than 10 s"));
        assert_eq!(begun.elapsed(), ANSWER_TIME);
    });
}

#[test]
fn a_member_that_does_not_lead_any_more_is_not_waited_for() {
    paused(async {
        let (_theirs, link) = link().await;
        let begun = Instant::now();
        let leads = || begun.elapsed() < Duration::from_secs(1);
        let failure = send(link, look(), leads).await.map(drop).unwrap_err();
        assert_eq!(failure, Failure::after("it does not lead any more"));
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
    });
}

#[test]
fn an_answer_leaves_part_by_part_and_one_that_breaks_off_has_no_end() {
    paused(async {
        let (mut theirs, link) = link().await;
        let answering = tokio::spawn(async move {
            let asked = head_of(&mut theirs).await;
            assert_eq!(asked, "GET /tubes?q=a HTTP/1.1\r\nhost: x\r\n\r\n");
            let begin = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n";
            theirs.write_all(begin.as_bytes()).await.unwrap();
            theirs
        });
        let (response, link) = send(link, look(), || true).await.unwrap();
        let places = Relay::default().places;
        let permit = places.clone().try_acquire_owned().unwrap();
        let answer = passed_back(response, (link, permit)).unwrap();
        let mut body = answer.into_body();
        let part = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(part, "one", "the second part is not there yet");
        let mut theirs = answering.await.unwrap();
        theirs.write_all(b"3\r\ntwo\r\n").await.unwrap();
        let part = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(part, "two");
        drop(theirs);
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(places.available_permits(), PASSED_ON_MAX - 1);
        drop(body);
        assert_eq!(places.available_permits(), PASSED_ON_MAX);
    });
}

#[test]
fn a_head_of_more_than_16_kib_is_no_answer() {
    paused(async {
        let (mut theirs, link) = link().await;
        tokio::spawn(async move {
            head_of(&mut theirs).await;
            let field = format!("x: {}\r\n\r\n", "x".repeat(2 * BUFFER_SIZE));
            let head = format!("HTTP/1.1 200 OK\r\n{field}");
            theirs.write_all(head.as_bytes()).await.unwrap();
            theirs
        });
        assert!(send(link, look(), || true).await.is_err());
    });
}

#[test]
fn past_32_requests_that_are_passed_on_the_next_is_answered_here() {
    live(async {
        let state = closed();
        let taken = state.relay.places.clone().try_acquire_many_owned(32);
        let head = head(Request::get("/").body(()).unwrap());
        let leader = leader_at("127.0.0.1:1");
        let asked = state.relay.ask(&state, &leader, &local(&head)).await;
        let failure = asked.map(drop).unwrap_err();
        assert_eq!(failure.why, "32 requests are being passed on already");
        assert!(!failure.may_be_done);
        drop(taken);
    });
}

#[test]
fn a_leader_that_wants_a_login_is_asked_once_a_minute_for_each_token() {
    live(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let leader = leader_at(&listener.local_addr().unwrap().to_string());
        let answering = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let asked = head_of(&mut stream).await;
            let answer = "HTTP/1.1 303 x\r\nlocation: /login?to=%2F\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
            asked
        });
        let state = closed();
        let head = head(Request::get("/").body(()).unwrap());
        let asked = state.relay.ask(&state, &leader, &local(&head)).await;
        assert_eq!(asked.map(drop), Err(Failure::before(OTHER_TOKENS)));
        assert!(
            answering
                .await
                .unwrap()
                .contains("bsd-passed-on: 00000000000000ff\r\n")
        );
        // No one listens there now.
        let asked = state.relay.ask(&state, &leader, &local(&head)).await;
        assert_eq!(asked.map(drop), Err(Failure::before(OTHER_TOKENS)));
        let (role, line) = (Role::Read, 2);
        let other = Asker::Token(Holder { role, line });
        assert!(!state.relay.has_refused(&leader, other));
        assert!(
            !state
                .relay
                .has_refused(&leader_at("127.0.0.1:1"), Asker::Local)
        );
    });
}

#[test]
fn a_token_that_came_over_tls_leaves_over_tls_alone() {
    let line = format!(
        "read:saltsalt:{}",
        "e819096d8f8af340037dbafd01c8067d67227641f09bbaeddbb5ec2fc22f653b"
    );
    let tokens = bsd_net::Tokens::parse(&line).unwrap();
    let access = Access::new(Some(tokens), Vec::new(), (1, true));
    let state = State::new(closed().handles, access).unwrap();
    let request = Request::get("/").header(AUTHORIZATION, "Bearer reader");
    let head = head(request.body(()).unwrap());
    for (address, has_tls, is_sent) in [
        ("10.0.0.1:80", false, false),
        ("10.0.0.1:80", true, true),
        ("127.0.0.1:80", false, true),
    ] {
        let leader = Leader {
            has_tls,
            ..leader_at(address)
        };
        let written = written(&state, &leader, &local(&head));
        assert_eq!(written.is_ok(), is_sent, "{address} {has_tls}");
        if let Ok(written) = written {
            assert_eq!(written.headers()[AUTHORIZATION], "Bearer reader");
        }
    }
}
