//! `_session`: who one is, logging in, logging out.

use hyper::header;
use hyper::{Method, StatusCode};

use crate::auth::Caller;
use crate::error::Failure;
use crate::json;
use crate::query::Query;
use crate::reply::{self, Answer};
use crate::server::Call;

pub(crate) async fn handle(call: &mut Call<'_>) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => show(call),
        Method::POST => log_in(call).await,
        Method::DELETE => {
            let mut response = reply::ok(StatusCode::OK);
            reply::set_header(&mut response, header::SET_COOKIE, call.server.auth.ended_cookie());
            Ok(response)
        }
        _ => Err(Failure::method_not_allowed("GET,HEAD,POST,DELETE")),
    }
}

fn show(call: &Call<'_>) -> Answer {
    if call.caller == Caller::Anonymous && call.query().is_true("basic") {
        return Err(Failure::unauthorized("Please login."));
    }
    let (name, roles, by) = match call.caller {
        Caller::Anonymous => (None, "[]", ""),
        Caller::Party => (None, "[\"_admin\"]", ",\"authenticated\":\"default\""),
        Caller::Basic => (call.server.auth.admin_name(), "[\"_admin\"]", ",\"authenticated\":\"default\""),
        Caller::Cookie { .. } => {
            (call.server.auth.admin_name(), "[\"_admin\"]", ",\"authenticated\":\"cookie\"")
        }
    };
    let mut text = b"{\"ok\":true,\"userCtx\":{\"name\":".to_vec();
    match name {
        Some(name) => settee_doc::write_json_string(name, &mut text),
        None => text.extend_from_slice(b"null"),
    }
    let rest = format!(
        ",\"roles\":{roles}}},\"info\":{{\"authentication_handlers\":[\"cookie\",\"default\"]{by}}}}}\n"
    );
    text.extend_from_slice(rest.as_bytes());
    Ok(reply::json(StatusCode::OK, text))
}

async fn log_in(call: &mut Call<'_>) -> Answer {
    let body = call.read_body().await?;
    let declared = call.header(header::CONTENT_TYPE).unwrap_or("");
    let (mut name, mut username, mut password) = (None, None, String::new());
    let mut take = |key: &str, value: String| match key {
        "name" => name = Some(value),
        "username" => username = Some(value),
        "password" => password = value,
        _ => {}
    };
    if declared.starts_with("application/x-www-form-urlencoded") {
        let form = std::str::from_utf8(&body.text).map_err(|_| Failure::bad_json())?;
        Query(form).pairs().for_each(|(key, value)| take(&key, value.into_owned()));
    } else if declared.starts_with("application/json") {
        for (key, value) in json::members(&body.text)?.0 {
            take(&key, json::string(value.get()).unwrap_or_default().into_owned());
        }
    }
    let name = match (name, username) {
        (None, None) => return Err(Failure::bad_request("request body must contain a username")),
        (Some(name), Some(username)) if name != username => {
            return Err(Failure::bad_request("request body contains different usernames"));
        }
        (Some(name), _) | (None, Some(name)) => name,
    };
    if !call.server.auth.is_admin(&name, &password) {
        tracing::warn!(%name, "a login failed");
        let mut response = reply::failure(&Failure::unauthorized("Name or password is incorrect."));
        reply::set_header(&mut response, header::SET_COOKIE, call.server.auth.ended_cookie());
        return Ok(response);
    }
    let mut text = b"{\"ok\":true,\"name\":".to_vec();
    settee_doc::write_json_string(&name, &mut text);
    text.extend_from_slice(b",\"roles\":[\"_admin\"]}\n");
    let mut response = reply::json(StatusCode::OK, text);
    reply::set_header(&mut response, header::SET_COOKIE, call.server.auth.session_cookie());
    Ok(response)
}
