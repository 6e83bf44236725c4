//! `_session`: the caller's identity, login and logout.

use hyper::header;
use hyper::{Method, Response, StatusCode};

use crate::auth::Caller;
use crate::context::{RequestContext, origin};
use crate::error::ApiError;
use crate::query::Query;
use crate::response::{self, Body, HandlerResult};
use crate::{json, logged};

pub(crate) async fn handle(context: &mut RequestContext<'_>) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => show(context),
        Method::POST => log_in(context).await,
        Method::DELETE => {
            let next = target(context, "next")?;
            let mut response = redirect(response::ok(StatusCode::OK), next);
            response::set_header(&mut response, header::SET_COOKIE, context.server.auth.ended_cookie());
            Ok(response)
        }
        _ => Err(ApiError::method_not_allowed("GET,HEAD,POST,DELETE")),
    }
}

fn show(context: &RequestContext<'_>) -> HandlerResult {
    if context.caller == Caller::Anonymous && context.query().is_true("basic") {
        return Err(ApiError::unauthorized("Please login."));
    }
    let (name, roles, by) = match context.caller {
        Caller::Anonymous => (None, "[]", ""),
        Caller::AdminParty => (None, "[\"_admin\"]", ",\"authenticated\":\"default\""),
        Caller::Basic => (context.server.auth.admin_name(), "[\"_admin\"]", ",\"authenticated\":\"default\""),
        Caller::Cookie { .. } => {
            (context.server.auth.admin_name(), "[\"_admin\"]", ",\"authenticated\":\"cookie\"")
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
    Ok(response::json(StatusCode::OK, text))
}

/// The path on this server that a redirect option names.
fn target(context: &RequestContext<'_>, option: &str) -> Result<Option<String>, ApiError> {
    match context.query().get(option) {
        None => Ok(None),
        Some(path) if path.starts_with('/') => Ok(Some(origin(context) + &path)),
        Some(_) => Err(ApiError::bad_request("path_must_begin_with_slash")),
    }
}

/// Turns a response into a redirect if there is a target.
fn redirect(mut response: Response<Body>, to: Option<String>) -> Response<Body> {
    if let Some(address) = to {
        *response.status_mut() = StatusCode::FOUND;
        response::set_header(&mut response, header::LOCATION, address);
    }
    response
}

async fn log_in(context: &mut RequestContext<'_>) -> HandlerResult {
    let (next, fail) = (target(context, "next")?, target(context, "fail")?);
    context.body.limit_as_unauthenticated(&context.server.unauthenticated);
    let body = context.read_body().await?;
    let declared = context.header(header::CONTENT_TYPE).unwrap_or("");
    let (mut name, mut username, mut password) = (None, None, String::new());
    let mut take = |key: &str, value: String| match key {
        "name" => name = Some(value),
        "username" => username = Some(value),
        "password" => password = value,
        _ => {}
    };
    if declared.starts_with("application/x-www-form-urlencoded") {
        let form = std::str::from_utf8(&body.text).map_err(|_| ApiError::bad_json())?;
        Query(form).pairs().for_each(|(key, value)| take(&key, value.into_owned()));
    } else if declared.starts_with("application/json") {
        json::each_member(&body.text, |key, value| {
            take(&key, json::string(value).unwrap_or_default().into_owned());
            Ok(())
        })?;
    } else {
        let reason = "Content-Type must be application/x-www-form-urlencoded or application/json";
        return Err(ApiError::bad_content_type(reason));
    }
    let name = match (name, username) {
        (None, None) => return Err(ApiError::bad_request("request body must contain a username")),
        (Some(name), Some(username)) if name != username => {
            return Err(ApiError::bad_request("request body contains different usernames"));
        }
        (Some(name), _) | (None, Some(name)) => name,
    };
    if !context.server.auth.is_admin(&name, &password) {
        tracing::warn!(name = logged::name(&name), "a login failed");
        let refused = response::error(&ApiError::unauthorized("Name or password is incorrect."));
        let mut response = redirect(refused, fail);
        response::set_header(&mut response, header::SET_COOKIE, context.server.auth.ended_cookie());
        return Ok(response);
    }
    let mut text = b"{\"ok\":true,\"name\":".to_vec();
    settee_doc::write_json_string(&name, &mut text);
    text.extend_from_slice(b",\"roles\":[\"_admin\"]}\n");
    let mut response = redirect(response::json(StatusCode::OK, text), next);
    response::set_header(&mut response, header::SET_COOKIE, context.server.auth.session_cookie());
    Ok(response)
}
