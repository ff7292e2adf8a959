// expect: property 3
const image = await tools.viewImage({ path: "logo.png" });
return `${image.width}x${image.height} ${image.type.mime}`;
