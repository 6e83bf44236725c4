//! `_session`: who one is, logging in, logging out.

use hyper::header;
use hyper::{Method, Response, StatusCode};

use crate::auth::Caller;
use crate::error::Failure;
use crate::query::Query;
use crate::reply::{self, Answer, Body};
use crate::server::Call;
use crate::{database, json, logged};

pub(crate) async fn handle(call: &mut Call<'_>) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => show(call),
        Method::POST => log_in(call).await,
        Method::DELETE => {
            let next = target(call, "next")?;
            let mut response = lead(reply::ok(StatusCode::OK), next);
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

/// Where a query's option leads: a path of this server.
fn target(call: &Call<'_>, option: &str) -> Result<Option<String>, Failure> {
    match call.query().get(option) {
        None => Ok(None),
        Some(path) if path.starts_with('/') => Ok(Some(database::origin(call) + &path)),
        Some(_) => Err(Failure::bad_request("path_must_begin_with_slash")),
    }
}

/// An answer that leads on to an address, where there is one.
fn lead(mut response: Response<Body>, to: Option<String>) -> Response<Body> {
    if let Some(address) = to {
        *response.status_mut() = StatusCode::FOUND;
        reply::set_header(&mut response, header::LOCATION, address);
    }
    response
}

async fn log_in(call: &mut Call<'_>) -> Answer {
    let (next, fail) = (target(call, "next")?, target(call, "fail")?);
    call.body.restrict(&call.server.unauthenticated);
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
        json::each_member(&body.text, |key, value| {
            take(&key, json::string(value).unwrap_or_default().into_owned());
            Ok(())
        })?;
    } else {
        let reason = "Content-Type must be application/x-www-form-urlencoded or application/json";
        return Err(Failure::bad_content_type(reason));
    }
    let name = match (name, username) {
        (None, None) => return Err(Failure::bad_request("request body must contain a username")),
        (Some(name), Some(username)) if name != username => {
            return Err(Failure::bad_request("request body contains different usernames"));
        }
        (Some(name), _) | (None, Some(name)) => name,
    };
    if !call.server.auth.is_admin(&name, &password) {
        tracing::warn!(name = logged::name(&name), "a login failed");
        let refused = reply::failure(&Failure::unauthorized("Name or password is incorrect."));
        let mut response = lead(refused, fail);
        reply::set_header(&mut response, header::SET_COOKIE, call.server.auth.ended_cookie());
        return Ok(response);
    }
    let mut text = b"{\"ok\":true,\"name\":".to_vec();
    settee_doc::write_json_string(&name, &mut text);
    text.extend_from_slice(b",\"roles\":[\"_admin\"]}\n");
    let mut response = lead(reply::json(StatusCode::OK, text), next);
    reply::set_header(&mut response, header::SET_COOKIE, call.server.auth.session_cookie());
    Ok(response)
}
