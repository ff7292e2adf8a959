// expect: argument 2
const image = await tools.viewImage({ file: "logo.png" });
return `${image.width}x${image.height} ${image.mimeType}`;
