// The description of the API, drawn by Swagger UI from this monitor's own files: it needs no other server.

import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import "swagger-ui-dist/swagger-ui.css";

SwaggerUI({ url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
