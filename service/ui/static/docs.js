"use strict";

SwaggerUIBundle({ url: "/openapi.json", dom_id: "#document", deepLinking: true });
