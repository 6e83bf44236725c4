//! Rules of `rewrites`: an array of `{from, to, method, query, formats}`.
//!
//! Segments of `from` match exactly; `:name` matches any segment and binds it, and a final `*` matches the rest.
//! `to` and the values of `query` may use the bindings, which are also parameters of the rewritten query, besides
//! those of the request.
//!
//! Source: `chttpd_rewrite` of CouchDB 3.5.0.

use hyper::StatusCode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::ApiError;
use crate::json;
use crate::query::{self, Query};

/// Largest number of rules.
const RULES_MAX: usize = 10_000;

/// Largest number of `..` segments in a rule's `to`, so that it stays within the database.
const PARENTS_MAX: usize = 2;

/// Parameters of views that are JSON.
const JSON_PARAMETERS: [&str; 6] = ["key", "startkey", "start_key", "endkey", "end_key", "keys"];

/// Characters of a path or a query that need no encoding.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What a name is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Text(String),
    /// JSON text.
    Json(String),
}

type Bindings = Vec<(String, Value)>;

impl Value {
    fn of_json(raw: &str) -> Value {
        match json::string(raw) {
            Some(text) => Value::Text(text.into_owned()),
            None => Value::Json(raw.to_owned()),
        }
    }

    /// The value as a segment of a path.
    fn text(&self) -> &str {
        match self {
            Value::Text(text) | Value::Json(text) => text,
        }
    }

    /// The value as JSON text.
    fn json(&self) -> String {
        match self {
            Value::Json(text) => text.clone(),
            Value::Text(text) => json::quoted(text),
        }
    }
}

/// A rule, with the segments of its paths.
struct Rule {
    method: Option<String>,
    from: Vec<String>,
    to: Vec<String>,
    query: Vec<(String, String)>,
    formats: Vec<(String, String)>,
}

/// The path and query, relative to the design document, that the first matching rule makes of a request.
///
/// # Errors
/// 404 if no rule matches; 500 for a rule without `to`, or whose `to` leaves the database.
pub(super) fn rewrite_by_rules(
    rules: &str,
    method: &str,
    path: &[String],
    query: Query<'_>,
) -> Result<String, ApiError> {
    let no_list = || ApiError::new(StatusCode::NOT_FOUND, "rewrite_error", "Invalid path.");
    let mut parsed = Vec::new();
    json::each_element(rules, no_list, |rule| {
        if parsed.len() == RULES_MAX {
            return Err(ApiError::bad_request(format!("There are more than {RULES_MAX} rewrite rules.")));
        }
        // As in CouchDB, what is no object is no rule.
        if rule.starts_with('{') {
            parsed.push(Rule::parse(rule)?);
        }
        Ok(())
    })?;
    let mut of_request = Bindings::new();
    for (name, value) in query.pairs() {
        let value = match JSON_PARAMETERS.contains(&name.as_ref()) {
            true => Value::of_json(query::json_value(&value)?),
            false => Value::Text(value.into_owned()),
        };
        of_request.push((name.into_owned(), value));
    }
    for rule in parsed.iter().filter(|rule| rule.method.as_deref().is_none_or(|wanted| wanted == method)) {
        if let Some((rest, bindings)) = rule.bind(path) {
            return rule.target(rest, bindings, &of_request);
        }
    }
    Err(ApiError::missing())
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, ApiError> {
        let [method, from, to, query, formats] =
            json::pick(text.as_bytes(), ["method", "from", "to", "query", "formats"])?;
        let string = |raw: &str| json::string(raw).map_or_else(|| raw.to_owned(), |text| text.into_owned());
        let to = to.ok_or_else(|| failed("error", "invalid_rewrite_target"))?;
        let to = segments(&string(to));
        if to.iter().filter(|segment| *segment == "..").count() > PARENTS_MAX {
            return Err(failed("insecure_rewrite_rule", "too many ../.. segments"));
        }
        let from = from.map_or_else(|| vec!["*".to_owned()], |from| segments(&string(from)));
        let method = method.map(string).filter(|method| method != "*");
        Ok(Rule { method, from, to, query: members(query)?, formats: members(formats)? })
    }

    /// The rest of the path behind a match, and what the names are bound to. `None` if the rule doesn't match.
    fn bind<'a>(&self, path: &'a [String]) -> Option<(&'a [String], Bindings)> {
        let (mut rest, mut bindings) = (path, Bindings::new());
        for (index, wanted) in self.from.iter().enumerate() {
            if wanted == "*" && index + 1 == self.from.len() {
                return Some((rest, bindings));
            }
            let (segment, after) = rest.split_first()?;
            match name_of(wanted) {
                Some(name) => bindings.insert(0, (name.to_owned(), Value::Text(segment.clone()))),
                None if wanted == segment => {}
                None => return None,
            }
            rest = after;
        }
        rest.is_empty().then_some((rest, bindings))
    }

    fn target(
        &self,
        rest: &[String],
        mut bindings: Bindings,
        of_request: &Bindings,
    ) -> Result<String, ApiError> {
        bindings.extend(of_request.iter().cloned());
        let mut own = Bindings::new();
        for (name, raw) in &self.query {
            own.push((name.clone(), self.value_of(raw, &bindings)?));
        }
        bindings.retain(|(name, _)| !own.iter().any(|(of_rule, _)| of_rule == name));
        bindings.extend(own);
        let mut path = Vec::new();
        for segment in &self.to {
            if segment == "*" {
                path.extend_from_slice(rest);
                break;
            }
            path.push(match name_of(segment) {
                Some(name) => find(name, &bindings).map_or("undefined", Value::text).to_owned(),
                None => segment.clone(),
            });
        }
        let encode = |text: &str| utf8_percent_encode(text, KEPT).to_string();
        let mut target = path.iter().map(|segment| encode(segment)).collect::<Vec<_>>().join("/");
        for (index, (name, value)) in bindings.iter().filter(|(name, _)| name != "*").enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            let value = match JSON_PARAMETERS.contains(&name.as_str()) {
                true => value.json(),
                false => value.text().to_owned(),
            };
            target.push_str(&format!("{}={}", encode(name), encode(&value)));
        }
        Ok(target)
    }

    /// A value of `query`, with the names that it has, or its elements, replaced.
    fn value_of(&self, raw: &str, bindings: &Bindings) -> Result<Value, ApiError> {
        if !raw.starts_with('[') {
            return Ok(match Value::of_json(raw) {
                Value::Text(text) => self.replaced(text, bindings),
                json => json,
            });
        }
        let mut elements = Vec::new();
        json::each_element(raw, ApiError::bad_json, |element| {
            elements.push(match Value::of_json(element) {
                Value::Text(text) if text != "*" => self.replaced(text, bindings).json(),
                other => other.json(),
            });
            Ok(())
        })?;
        Ok(Value::Json(format!("[{}]", elements.join(","))))
    }

    fn replaced(&self, text: String, bindings: &Bindings) -> Value {
        let Some(name) = name_of(&text) else { return Value::Text(text) };
        let value = find(name, bindings).cloned().unwrap_or_else(|| Value::Text(text.clone()));
        let format = self.formats.iter().find(|(formatted, _)| formatted == name);
        match (format.and_then(|(_, format)| json::string(format)).as_deref(), &value) {
            (Some("int"), Value::Text(text)) if text.parse::<i64>().is_ok() => Value::Json(text.clone()),
            (Some("bool"), Value::Text(text))
                if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") =>
            {
                Value::Json(text.to_ascii_lowercase())
            }
            _ => value,
        }
    }
}

/// The name that a segment or a value binds or uses.
fn name_of(text: &str) -> Option<&str> {
    if text == "*" { Some("*") } else { text.strip_prefix(':') }
}

fn find<'a>(name: &str, bindings: &'a Bindings) -> Option<&'a Value> {
    bindings.iter().find(|(bound, _)| bound == name).map(|(_, value)| value)
}

fn segments(path: &str) -> Vec<String> {
    path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

fn members(object: Option<&str>) -> Result<Vec<(String, String)>, ApiError> {
    let mut members = Vec::new();
    if let Some(object) = object.filter(|object| object.starts_with('{')) {
        json::each_member(object.as_bytes(), |name, value| {
            members.push((name.into_owned(), value.to_owned()));
            Ok(())
        })?;
    }
    Ok(members)
}

fn failed(error: &'static str, reason: &'static str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error, reason)
}

/// A path below `prefix`, without `.` and `..`, which never lead above the root.
pub(super) fn normalized(prefix: &str, path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in prefix.split('/').chain(path.split('/')) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(rules: &str, path: &str, query: &str) -> Result<String, (u16, String)> {
        rewrite_by_rules(rules, "GET", &segments(path), Query(query))
            .map_err(|failure| (failure.status.as_u16(), failure.reason.into_owned()))
    }

    #[test]
    fn names_and_the_rest_are_bound() {
        for (rules, path, expected) in [
            (r#"[{"from":"a","to":"b"}]"#, "a", "b"),
            (r#"[{"from":"/a/*","to":"../../*"}]"#, "a/x/y z", "../../x/y%20z"),
            (r#"[{"from":"","to":"index"},{"to":"all/*"}]"#, "", "index"),
            (r#"[{"from":"","to":"index"},{"to":"all/*"}]"#, "q", "all/q"),
            (r#"[{"from":":a/x","to":"_show/:a"}]"#, "1/x", "_show/1?a=1"),
            (r#"[{"from":"x","to":"_show/:none"}]"#, "x", "_show/undefined"),
            (r#"[{"from":"x","method":"PUT","to":"b"},{"from":"x","to":"c"}]"#, "x", "c"),
        ] {
            assert_eq!(rewritten(rules, path, "").as_deref(), Ok(expected), "{rules} {path}");
        }
    }

    #[test]
    fn the_query_has_the_rules_parameters_and_the_requests() {
        let rule = r#"[{"from":"v/:n","to":"_view/v","formats":{"n":"int"},
            "query":{"key":":n","startkey":[":n","x"],"limit":"5","q":":q"}}]"#;
        let found = rewritten(rule, "v/12", "q=a&other=1").unwrap();
        let query = found.strip_prefix("_view/v?").unwrap();
        let mut pairs: Vec<_> = Query(query).pairs().map(|(a, b)| format!("{a}={b}")).collect();
        pairs.sort();
        assert_eq!(pairs, ["key=12", "limit=5", "n=12", "other=1", "q=a", "startkey=[12,\"x\"]"]);
    }

    #[test]
    fn what_matches_nothing_or_leaves_the_database_is_refused() {
        assert_eq!(rewritten(r#"[{"from":"a","to":"b"}]"#, "c", ""), Err((404, "missing".into())));
        assert_eq!(rewritten("[]", "c", ""), Err((404, "missing".into())));
        let parents = r#"[{"from":"a","to":"../../../b"}]"#;
        assert_eq!(rewritten(parents, "a", ""), Err((500, "too many ../.. segments".into())));
        assert_eq!(rewritten(r#"[{"from":"a"}]"#, "a", ""), Err((500, "invalid_rewrite_target".into())));
    }

    #[test]
    fn parents_never_lead_above_the_root() {
        for (path, expected) in
            [("a", "/db/_design/d/a"), ("../../x/./y", "/db/x/y"), ("../../../../z", "/z")]
        {
            assert_eq!(normalized("/db/_design/d", path), expected);
        }
    }
}
