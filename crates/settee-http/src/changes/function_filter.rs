//! Filters that are functions of a design document: `filter=DESIGN/NAME`, and `filter=_view` with a map function.

use std::sync::Arc;

use settee_doc::Database;

use crate::context::RequestContext;
use crate::error::ApiError;
use crate::functions::request_object::{RequestText, request_object};
use crate::javascript::{Contexts, DesignSource};

/// The names of a filter's design document and function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FunctionName {
    design: String,
    name: String,
    /// Whether it is a view's map function: a document passes for which it emits.
    is_view: bool,
}

impl FunctionName {
    /// Parses `DESIGN/NAME`. As in CouchDB, empty parts don't count. `None` if there are more or fewer.
    pub(super) fn parse(text: &str, is_view: bool) -> Option<FunctionName> {
        let mut parts = text.split('/').filter(|part| !part.is_empty());
        let (design, name) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        parts.next().is_none().then_some(FunctionName { design, name, is_view })
    }
}

/// A filter function, as it was when its feed began.
pub(super) struct FunctionFilter {
    contexts: Arc<Contexts>,
    design: Arc<DesignSource>,
    function: FunctionName,
    request: Arc<str>,
}

impl FunctionFilter {
    /// Finds the function. `body` is the request's, as JSON text.
    ///
    /// # Errors
    /// 404 if there is no such design document or function.
    pub(super) async fn open(
        context: &RequestContext<'_>,
        database: &Database,
        function: FunctionName,
        body: Option<&str>,
    ) -> Result<FunctionFilter, ApiError> {
        let design = DesignSource::read(database, &format!("_design/{}", function.design)).await?;
        match function.is_view {
            true => design.check_view(&function.name)?,
            false => design.check_function("filters", &function.name)?,
        }
        let body = body.map_or(RequestText::None, RequestText::Json);
        let request = request_object(context, database, None, body)?.into();
        Ok(FunctionFilter { contexts: context.server.contexts.clone(), design, function, request })
    }

    /// Which of `documents`, each a JSON text, pass.
    ///
    /// # Errors
    /// 500 if the function raises for one of them.
    pub(super) async fn passes(&self, documents: Vec<String>) -> Result<Vec<bool>, ApiError> {
        let (function, request) = (self.function.clone(), self.request.clone());
        let call = move |context: &mut settee_js::DesignContext| {
            let texts: Vec<&str> = documents.iter().map(String::as_str).collect();
            match function.is_view {
                true => context.filter_view(&function.name, &texts),
                false => context.filter(&["filters", &function.name], &texts, &request),
            }
        };
        self.contexts.run(&self.design, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_two_names() {
        let named = |text| FunctionName::parse(text, false).map(|found| (found.design, found.name));
        assert_eq!(named("a/b"), Some(("a".into(), "b".into())));
        assert_eq!(named("/a//b"), Some(("a".into(), "b".into())));
        for other in ["", "/", "a", "a/b/c"] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
